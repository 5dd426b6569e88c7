// Whose the other end of a TCP connection of this machine with itself is.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"

namespace rekindle::daemon {

// The user whose socket it is, from the kernel's tables. Unauthenticated: it is not of this machine (or
// network namespace).
absl::StatusOr<uid_t> OwnerOfOtherEnd(int connection);

}  // namespace rekindle::daemon
