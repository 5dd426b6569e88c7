// System V semaphores whose operations the kernel undoes when a process ends (SEM_UNDO). It does not tell
// what it would undo, and CRIU does not ask: the end of a captured job gives back what the restored one
// believes to hold, and the end of the restored one nothing, or too much.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace rekindle::ckpt {

// Has the IPC namespace of this process any, as far as that is told without going into it? Costs next to
// nothing.
bool SeesSemaphores(pid_t pid);

// FailedPrecondition: one of these processes, which has a thread only and operations to undo, was the last to
// change a semaphore that is 0: a lock that it holds, as it seems. `warnings` get those that may be: of
// processes with threads, for which the kernel always has such a list, of semaphores that are not 0, and of
// those of PHP's that are 0 whenever nobody uses them. Costs a thread, where SeesSemaphores. What can't be
// looked at is passed over. Thread-safe.
absl::Status CheckNoHeldSemaphore(absl::Span<const pid_t> pids, std::vector<std::string>* warnings);

}  // namespace rekindle::ckpt
