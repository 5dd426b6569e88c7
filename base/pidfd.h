// Processes by their descriptors (pidfd_open), which mean the same process whatever becomes of its number.
// All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle {

// A descriptor of the process of that number. NotFound: there is none, also where the number is that of a
// thread, or is still that of a process group or session whose first process has gone.
absl::StatusOr<UniqueFd> OpenProcess(pid_t pid);

// False, with errno: it was not sent. ESRCH: the process has ended.
bool SendSignal(int pidfd, int signal);

// Until it has ended; a zombie has. False: not within `patience`, or `pidfd` is none.
bool AwaitExit(int pidfd, absl::Duration patience = absl::InfiniteDuration());

// How a process ended that has, and that need not be our child: what the zombie has, where we might trace it.
// Else waits a little until its parent has taken its exit status, and asks the kernel for it (PIDFD_GET_INFO
// with PIDFD_INFO_EXIT, Linux 6.15). Nothing: nobody can tell.
std::optional<ExitState> ExitOfEnded(int pidfd);

// Kills it and waits until it has ended. Nothing is reaped.
void KillAndAwaitExit(int pidfd);

}  // namespace rekindle
