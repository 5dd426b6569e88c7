// Processes that `cuda-checkpoint --launch-job` has started (driver 590 and newer), and their children: the
// driver has one file for all of them, which is what lets them share memory and fork.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/types/span.h"

namespace rekindle::gpu {

// In which rounds these may be locked, moved and unlocked: those of a round at once, since one of several
// that work together may wait for another. Of the processes of a launch job, says NVIDIA, one may be at a
// time, and they come back in the order in which they left: that of `pids`.
std::vector<std::vector<pid_t>> RoundsOf(absl::Span<const pid_t> pids);

}  // namespace rekindle::gpu
