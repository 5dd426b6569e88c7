// What /proc/PID/task/THREAD/stat says of one thread.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "base/process_stat.h"

namespace rekindle {

// As of a process, but with its own processor time alone: the kernel need not look at the others. NotFound
// when there is no such thread.
absl::StatusOr<ProcessStat> ReadThreadStat(pid_t pid, pid_t thread);

// It runs nothing but the kernel's code, as those of io_uring do (PF_USER_WORKER, Linux 6.4, and before
// PF_IO_WORKER alone).
inline bool IsKernelWorker(const ProcessStat& thread) { return (thread.flags & 0x00004010) != 0; }

}  // namespace rekindle
