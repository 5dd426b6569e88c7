// Threads of the job in which nothing but the kernel's code runs, as those of an io_uring. CRIU waits without
// end for such a thread to do something for it. Thread-safe; they read /proc and change nothing.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace rekindle::ckpt {

// FailedPrecondition: one of these processes has such a thread; says which, and what to do.
absl::Status CheckNoKernelWorkers(absl::Span<const pid_t> pids);

// Whether CRIU, of this number, waits for one that it has seized. `awaited`: its number in CRIU's namespace.
bool IsKernelWorkerOf(pid_t criu, pid_t awaited);

}  // namespace rekindle::ckpt
