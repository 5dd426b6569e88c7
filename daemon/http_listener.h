// The sockets on which the HTTP front of functions listens.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// "HOST:PORT", of an address of this machine, or "unix:PATH", a socket that everybody may connect to; one
// that a dead daemon has left there is replaced. InvalidArgument: it is neither. The connections' callers
// are found out one by one (http_callers.h).
absl::StatusOr<UniqueFd> ListenForHttp(const std::string& address);

}  // namespace rekindle::daemon
