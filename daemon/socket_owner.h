// Whose the other end of a TCP connection of this machine with itself is.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"

namespace rekindle::daemon {

// The user whose socket it is, by the kernel's word: from its index (NETLINK_SOCK_DIAG), or, where that may
// not be asked, from its list of all sockets, which takes as long as there are many. Unauthenticated: it is
// not of this machine (or network namespace), or closed. Thread-safe.
absl::StatusOr<uid_t> OwnerOfOtherEnd(int connection);

}  // namespace rekindle::daemon
