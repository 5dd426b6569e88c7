// A /tmp and /var/tmp that are a copy's own: in memory, bounded, and gone with the last process that has
// them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct OwnTemporary {
  uint64_t bytes = 0;             // that both together may have; 0: the machine's are used
  std::vector<std::string> keep;  // folders in these that stay where they are; what isn't there is left out
};

// In the mount namespace of the calling thread, which must not hand its mounts on to others. A folder that
// the machine does not have is left out. Thread-safe.
absl::Status MountOwnTemporary(const OwnTemporary& temporary);

// A mount namespace that is otherwise the caller's, for setns. Starts a thread. Thread-safe.
absl::StatusOr<UniqueFd> MountsWithOwnTemporary(const OwnTemporary& temporary);

// The names of what lies in the /tmp and /var/tmp of a process that has its own, without what was kept; empty
// too when they can't be looked at. Thread-safe.
std::vector<std::string> LyingInOwnTemporary(pid_t process, const OwnTemporary& temporary);

// Gives a process the machine's again, for an image of it: CRIU takes none of who has a file of the machine's
// open that lies behind a mount. Of what is in use it keeps its own. Starts a thread. Thread-safe.
void UnmountOwnTemporary(pid_t process, const OwnTemporary& temporary);

}  // namespace rekindle::restore
