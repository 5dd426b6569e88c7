#include "base/standstill.h"

#include <unistd.h>

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process_stat.h"

namespace rekindle {
namespace {

constexpr absl::Duration kMayTakeToStop = absl::Seconds(2);

}  // namespace

bool StandsStill(pid_t pid) {
  const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
  if (!threads.ok()) return true;
  return absl::c_all_of(*threads, [](pid_t thread) {
    const absl::StatusOr<ProcessStat> facts = ReadProcessStat(thread);
    return !facts.ok() || facts->state == 'T' || facts->state == 't' || facts->ending();
  });
}

void AwaitStandstill(pid_t pid, const Deadline& deadline) {
  // Nothing tells when a process stops that is no child of ours.
  while (!StandsStill(pid) && !deadline.passed()) ::usleep(100);
}

void StopWhileNewOnesCome(const std::function<std::vector<pid_t>()>& stop_new) {
  const Deadline patience(kMayTakeToStop);
  for (std::vector<pid_t> fresh = stop_new(); !fresh.empty(); fresh = stop_new()) {
    for (pid_t pid : fresh) AwaitStandstill(pid, patience);
  }
}

}  // namespace rekindle
