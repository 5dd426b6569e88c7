#include "daemon/job_sample.h"

#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/cgroup_folders.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::daemon {
namespace {

uint64_t IoBytes(pid_t pid) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/io"));
  if (!text.ok()) return 0;
  uint64_t sum = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    uint64_t bytes = 0;
    if ((absl::ConsumePrefix(&line, "rchar: ") || absl::ConsumePrefix(&line, "wchar: ")) &&
        absl::SimpleAtoi(line, &bytes)) {
      sum += bytes;
    }
  }
  return sum;
}

}  // namespace

JobSample SampleJob(pid_t root) {
  const auto ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  JobSample sample;
  sample.pids = ProcessTree(root);
  sample.stopped = !FrozenCgroupOf(root).empty();
  for (const pid_t pid : sample.pids) {
    if (absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid); stat.ok()) {
      sample.cpu_seconds += static_cast<double>(stat->cpu_ticks) / ticks_a_second;
      sample.stopped |= stat->state == 'T' || stat->state == 't';
      if (!stat->ending()) sample.processes.push_back({pid, stat->start_ticks});
    }
    sample.io_bytes += IoBytes(pid);
  }
  return sample;
}

}  // namespace rekindle::daemon
