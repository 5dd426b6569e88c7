// The sockets on which the daemon listens for HTTP.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// "HOST:PORT", of an address of this machine, or "unix:PATH", a socket that everybody may connect to; one
// that a dead daemon has left there is replaced. InvalidArgument: it is neither. AlreadyExists: another
// listens there. Messages name `option`, which the address was given to.
absl::StatusOr<UniqueFd> ListenForHttp(const std::string& address, absl::string_view option);

}  // namespace rekindle::daemon
