#include "base/cgroup_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/cgroup_folders.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/status.h"

namespace rekindle {
namespace {

// Of the limit, and at least.
constexpr uint64_t kKeptShare = 16;
constexpr uint64_t kLeastKept = uint64_t{1} << 20;
// The old hierarchy's way of saying that there is none is a little less than twice this.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// The files of one version (`throttle`: the limit above which the kernel takes from them what it can and
// makes them wait, where there is such), and the lines of memory.stat with the files that are in memory and
// need not be. Of an old hierarchy those of the groups within are in the total alone, as they are in what is
// used.
struct Names {
  const char *limit, *throttle, *used, *inactive, *active;
};
constexpr Names kVersions[] = {
    {"memory.max", "memory.high", "memory.current", "inactive_file", "active_file"},
    {"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"},
};

std::optional<std::string> ReadIn(int folder, const char* name) {
  UniqueFd file(::openat(folder, name, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  std::string text;
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(file.get(), buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  if (n < 0) return std::nullopt;
  return text;
}

// Nothing: there is none, or it says "max".
std::optional<uint64_t> NumberIn(int folder, const char* name) {
  const std::optional<std::string> text = ReadIn(folder, name);
  uint64_t number = 0;
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &number)) return std::nullopt;
  return number;
}

uint64_t Reclaimable(int folder, const Names& names) {
  const std::optional<std::string> text = ReadIn(folder, "memory.stat");
  uint64_t bytes = 0;
  for (absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t number = 0;
    if ((words.first == names.inactive || words.first == names.active) &&
        absl::SimpleAtoi(words.second, &number)) {
      bytes += number;
    }
  }
  return bytes;
}

struct Usage {
  uint64_t limit, needed;  // bytes
};

// Nothing: there is no limit.
std::optional<Usage> UsageIn(int folder) {
  for (const Names& names : kVersions) {
    uint64_t limit = NumberIn(folder, names.limit).value_or(kNoLimit);
    if (names.throttle != nullptr)
      limit = std::min(limit, NumberIn(folder, names.throttle).value_or(kNoLimit));
    const std::optional<uint64_t> used = NumberIn(folder, names.used);
    if (!used || limit >= kNoLimit) continue;
    return Usage{limit, *used - std::min(*used, Reclaimable(folder, names))};
  }
  return std::nullopt;
}

uint64_t FreeOf(const Usage& usage) { return usage.limit - std::min(usage.limit, usage.needed); }

uint64_t LeftOf(const Usage& usage) {
  const uint64_t free = FreeOf(usage);
  return free - std::min(free, std::max(usage.limit / kKeptShare, kLeastKept));
}

// `groups`: the file that says them.
std::vector<MemoryLimit> LimitsIn(const std::string& groups) {
  const auto theirs = ReadFile(groups), mounts = ReadFile("/proc/self/mountinfo");
  std::vector<MemoryLimit> limits;
  if (!theirs.ok() || !mounts.ok()) return limits;
  for (const std::string& folder : CgroupFolders(*theirs, "", *mounts)) {
    for (MemoryLimit& limit : MemoryLimitsAbove(folder)) limits.push_back(std::move(limit));
  }
  return limits;
}

}  // namespace

uint64_t MemoryRoom::Free() const {
  const std::optional<Usage> usage = UsageIn(folder_.get());
  return usage ? FreeOf(*usage) : kUnlimited;
}

uint64_t MemoryRoom::Left() const {
  const std::optional<Usage> usage = UsageIn(folder_.get());
  return usage ? LeftOf(*usage) : kUnlimited;
}

std::vector<MemoryLimit> MemoryLimitsAbove(const std::string& folder) {
  std::vector<MemoryLimit> limits;
  for (std::string group = folder; ::access(absl::StrCat(group, "/cgroup.procs").c_str(), F_OK) == 0;
       group.erase(group.rfind('/'))) {
    const auto opened = OpenFile(group, O_RDONLY | O_DIRECTORY);
    if (!opened.ok()) break;
    if (const std::optional<Usage> usage = UsageIn(opened->get()))
      limits.push_back({group, FreeOf(*usage), LeftOf(*usage)});
    if (group.find('/') == std::string::npos) break;
  }
  return limits;
}

std::vector<MemoryLimit> MemoryLimitsOf(pid_t pid) {
  return LimitsIn(absl::StrCat("/proc/", pid, "/cgroup"));
}

absl::StatusOr<uint64_t> OwnAvailableMemoryBytes() {
  RK_ASSIGN_OR_RETURN(uint64_t available, AvailableMemoryBytes());
  for (const MemoryLimit& limit : LimitsIn("/proc/self/cgroup")) available = std::min(available, limit.free);
  return available;
}

}  // namespace rekindle
