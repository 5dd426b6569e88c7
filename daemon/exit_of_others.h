// How a process ended that is not our child.
#pragma once

#include <atomic>

#include "base/subprocess.h"

namespace rekindle::daemon {

// `ended`: the pidfd of a process that has ended. Waits a little until its parent has taken its exit status,
// and asks the kernel for it (PIDFD_GET_INFO with PIDFD_INFO_EXIT, Linux 6.15). Where nobody can tell,
// `*unknown` is set and the result is exit status 255.
ExitState ExitOfStranger(int ended, std::atomic<bool>* unknown);

}  // namespace rekindle::daemon
