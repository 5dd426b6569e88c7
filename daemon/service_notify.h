// Tells systemd how the service is doing (the sd_notify protocol).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle::daemon {

// Sends `state` ("READY=1", "STOPPING=1") to $NOTIFY_SOCKET; OK, and nothing is sent, where that is not set.
absl::Status NotifyServiceManager(absl::string_view state);

}  // namespace rekindle::daemon
