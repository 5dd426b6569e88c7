// How a process ended that is not our child.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "base/subprocess.h"

namespace rekindle::daemon {

// To be called while it lives: some kernels tell only who has said that he wants to know.
void ExpectExitOf(pid_t pid);

// `ended`: the pidfd of process `pid`, which has ended. Where nobody can tell (see ExitOfEnded and
// ExitEvents), `*unknown` is set and the result is exit status 255.
ExitState ExitOfStranger(int ended, pid_t pid, std::atomic<bool>* unknown);

}  // namespace rekindle::daemon
