#include "gpu_state/cuda_processes.h"

#include <cstddef>
#include <iterator>
#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cgroup_folders.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "gpu_state/keeper_client.h"

namespace rekindle::gpu {
namespace {

constexpr char kCriuCommand[] = "criu", kKeeperCommand[] = "rekindle-gpu-keeper";

bool AThreadRuns(pid_t pid) {
  const auto threads = ThreadsOf(pid);
  return threads.ok() && absl::c_any_of(*threads, [](pid_t thread) {
           const auto stat = ReadProcessStat(thread);
           return stat.ok() && stat->state != 't';
         });
}

// Which of them are below one that may use CUDA. Each of those above them is looked at once.
std::vector<pid_t> BelowCuda(absl::Span<const pid_t> pids) {
  std::map<pid_t, bool> may_use;
  const auto is_below = [&may_use](pid_t pid) {
    std::vector<pid_t> above;
    for (auto stat = ReadProcessStat(pid); stat.ok() && stat->parent > 1;
         stat = ReadProcessStat(above.back())) {
      const pid_t parent = stat->parent;
      // A PID may have gone to another process between two looks.
      if (parent == pid || absl::c_linear_search(above, parent)) return false;
      above.push_back(parent);
      const auto [known, is_new] = may_use.try_emplace(parent, false);
      if (is_new) {
        const auto of_parent = ReadProcessStat(parent);
        known->second = of_parent.ok() && MayUseCuda(parent, *of_parent);
      }
      if (known->second) return true;
    }
    return false;
  };
  std::vector<pid_t> below;
  absl::c_copy_if(pids, std::back_inserter(below), is_below);
  return below;
}

}  // namespace

bool MapsCuda(pid_t pid) {
  auto maps = ReadFile(absl::StrCat("/proc/", pid, "/maps"));
  return maps.ok() && absl::StrContains(*maps, kCudaLibrary);
}

bool MayUseCuda(pid_t pid, const ProcessStat& stat) {
  return stat.threads > 1 && !stat.kernel_thread() && MapsCuda(pid);
}

absl::Status IsBeingMovedError(pid_t pid) {
  return absl::AbortedError(absl::StrCat(
      "process ", pid, ": its GPU memory is being moved just now; try again when that has ended"));
}

absl::Status CheckAnswers(pid_t pid) {
  if (const std::string frozen = FrozenCgroupOf(pid); !frozen.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("process ", pid, " is frozen by its cgroup ", frozen,
                                                      ", and the driver can be asked about its GPU memory "
                                                      "only while it runs: let it go on first (docker "
                                                      "unpause, systemctl thaw)"));
  }
  auto stat = ReadProcessStat(pid);
  if (!stat.ok() || (stat->state != 'T' && stat->state != 't')) return absl::OkStatus();
  // Of a parked one a thread may stand alone; the driver's own does not.
  if (stat->state == 't' && ThreadKeeper::IsWatched(pid) && AThreadRuns(pid)) return absl::OkStatus();
  if (const pid_t tracer = TracerOf(absl::StrCat(pid)); stat->state == 't' && tracer != 0) {
    const std::string command = CommandLineOf(tracer);
    // It stands still for an image, which ends.
    if (absl::StrContains(command, kCriuCommand)) return IsBeingMovedError(pid);
    // Where a parked job is watched, somebody has stopped it.
    if (!absl::StrContains(command, kKeeperCommand)) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", pid, " stands still for process ", tracer, " (", command.substr(0, 40),
                       "), which traces it, and the driver can be asked about its GPU memory only while it ",
                       "runs: let it go on there first"));
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", pid, " is stopped, and the driver can be asked about its GPU memory only while it runs: ",
      "let it go on first (kill -CONT ", pid, ")"));
}

void LeaveOutForked(DriverClient& driver, absl::Duration timeout, std::vector<pid_t>* pids) {
  const std::vector<pid_t> children = BelowCuda(*pids);
  if (children.empty()) return;
  const auto threads = driver.EachRestoreThread(children, timeout);
  for (size_t i = 0; i < children.size(); ++i) {
    // What an older driver does not tell says nothing.
    if (absl::IsNotFound(threads[i].status()))
      std::erase_if(*pids, [&](pid_t pid) { return pid == children[i]; });
  }
}

}  // namespace rekindle::gpu
