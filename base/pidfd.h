// Processes by their descriptors (pidfd_open), which mean the same process whatever becomes of its number.
// All functions are thread-safe.
#pragma once

#include "absl/time/time.h"

namespace rekindle {

// False, with errno: it was not sent. ESRCH: the process has ended.
bool SendSignal(int pidfd, int signal);

// Until it has ended; a zombie has. False: not within `patience`, or `pidfd` is none.
bool AwaitExit(int pidfd, absl::Duration patience = absl::InfiniteDuration());

// Kills it and waits until it has ended. Nothing is reaped.
void KillAndAwaitExit(int pidfd);

}  // namespace rekindle
