// How a process ended that is not our child.
#pragma once

#include <atomic>

#include "base/subprocess.h"

namespace rekindle::daemon {

// `ended`: the pidfd of a process that has ended. Where nobody can tell (see ExitOfEnded), `*unknown` is set
// and the result is exit status 255.
ExitState ExitOfStranger(int ended, std::atomic<bool>* unknown);

}  // namespace rekindle::daemon
