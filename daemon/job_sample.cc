#include "daemon/job_sample.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::daemon {
namespace {

double CpuSeconds(pid_t pid) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return 0;
  // The program's name may hold anything; after it come fields 3 and following, of which 14 and 15 are
  // wanted.
  const size_t after_name = text->rfind(')');
  if (after_name == std::string::npos) return 0;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*text).substr(after_name + 2), ' ');
  uint64_t user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtoi(fields[11], &user) || !absl::SimpleAtoi(fields[12], &system))
    return 0;
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

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
  JobSample sample;
  for (const pid_t pid : ProcessTree(root)) {
    sample.cpu_seconds += CpuSeconds(pid);
    sample.io_bytes += IoBytes(pid);
  }
  return sample;
}

}  // namespace rekindle::daemon
