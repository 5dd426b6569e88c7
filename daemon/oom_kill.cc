#include "daemon/oom_kill.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

bool WasKilledForMemory(pid_t pid, int64_t since_boot_ns) {
  UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) return false;
  // "Out of memory: Killed process 123 (name) ..." or "Memory cgroup out of memory: Killed process 123 ...".
  const std::string wanted = absl::StrCat("Killed process ", pid, " (");
  char record[8192];
  for (;;) {
    const ssize_t got = ::read(log.get(), record, sizeof record);
    if (got < 0 && (errno == EPIPE || errno == EINTR))
      continue;  // EPIPE: overwritten meanwhile, the next one is next
    if (got <= 0) return false;
    const absl::string_view text(record, static_cast<size_t>(got));
    if (!absl::StrContains(text, wanted) || !absl::StrContains(text, "ut of memory")) continue;
    // "priority,sequence,microseconds,flags;message"
    const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::MaxSplits(',', 3));
    int64_t microseconds = 0;
    if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &microseconds)) continue;
    constexpr int64_t kClocksDiffer = 2'000'000'000;  // the log's clock is not quite the boot clock
    if (microseconds * 1000 + kClocksDiffer >= since_boot_ns) return true;
  }
}

}  // namespace rekindle::daemon
