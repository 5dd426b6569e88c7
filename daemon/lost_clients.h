// Connections over TCP whose other end is a machine that has gone: without this a call waits for it for ever,
// with all that it holds.
#pragma once

#include "absl/status/status.h"

namespace rekindle::daemon {

// Of all connections that this process accepts on a TCP port from now on: the kernel probes those that are
// silent, and ends them two minutes after the last answer. A client that is stopped answers, its kernel does.
// NotFound: nothing of this process listens there.
absl::Status NoticeLostClients(int port);

}  // namespace rekindle::daemon
