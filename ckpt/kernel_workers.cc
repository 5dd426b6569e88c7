#include "ckpt/kernel_workers.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/process_stat.h"
#include "base/thread_stat.h"

namespace rekindle::ckpt {

absl::Status CheckNoKernelWorkers(absl::Span<const pid_t> pids) {
  for (const pid_t pid : pids) {
    const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
    if (!threads.ok() || threads->size() < 2) continue;
    for (const pid_t thread : *threads) {
      const absl::StatusOr<ProcessStat> stat = ReadThreadStat(pid, thread);
      if (!stat.ok() || !IsKernelWorker(*stat)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", pid, ": its thread ", thread, " (", stat->name,
          ") is one of the kernel's that works for it and can't be saved: of an io_uring (iou-...), also "
          "where its descriptor is closed, or of a virtual device (vhost-...); start the job without "
          "io_uring (Node.js: UV_USE_IO_URING=0; MariaDB: innodb_use_native_aio=0), or let it close what it "
          "uses and try again when the thread has ended"));
    }
  }
  return absl::OkStatus();
}

bool IsKernelWorkerOf(pid_t criu, pid_t awaited) {
  for (const pid_t pid : ListProcesses()) {
    if (TracerOf(absl::StrCat(pid)) != criu) continue;
    const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
    if (!threads.ok()) continue;
    for (const pid_t thread : *threads) {
      const absl::StatusOr<ProcessStat> stat = ReadThreadStat(pid, thread);
      if (stat.ok() && IsKernelWorker(*stat) &&
          absl::c_linear_search(NamespaceNumbers(absl::StrCat(pid, "/task/", thread)), awaited))
        return true;
    }
  }
  return false;
}

}  // namespace rekindle::ckpt
