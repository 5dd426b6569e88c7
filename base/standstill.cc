#include "base/standstill.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle {
namespace {

constexpr absl::Duration kMayTakeToStop = absl::Seconds(2);

}  // namespace

bool StandsStill(pid_t pid) {
  const absl::StatusOr<std::vector<std::string>> threads =
      ListDirectory(absl::StrCat("/proc/", pid, "/task"));
  if (!threads.ok()) return true;
  return absl::c_all_of(*threads, [](const std::string& thread) {
    pid_t number = 0;
    if (!absl::SimpleAtoi(thread, &number)) return true;
    const absl::StatusOr<ProcessStat> facts = ReadProcessStat(number);
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
