#include "restore/memory_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/cgroup_folders.h"
#include "base/file.h"

namespace rekindle::restore {
namespace {

// Of the limit, and at least.
constexpr uint64_t kKeptShare = 16;
constexpr uint64_t kLeastKept = uint64_t{1} << 20;
// The old hierarchy's way of saying that there is none is a little less than this.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

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

std::optional<uint64_t> NumberIn(int folder, const char* name) {
  std::optional<std::string> text = ReadIn(folder, name);
  uint64_t number = 0;
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &number)) return std::nullopt;
  return number;
}

// Files that are in memory and need not be: the kernel takes them back before it kills.
uint64_t Reclaimable(int folder) {
  std::optional<std::string> text = ReadIn(folder, "memory.stat");
  uint64_t bytes = 0;
  for (absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
    uint64_t number = 0;
    if ((absl::ConsumePrefix(&line, "inactive_file ") || absl::ConsumePrefix(&line, "active_file ")) &&
        absl::SimpleAtoi(line, &number)) {
      bytes += number;
    }
  }
  return bytes;
}

}  // namespace

uint64_t MemoryRoom::Left() const {
  if (!folder_.valid()) return kUnlimited;
  // "max" is no number.
  std::optional<uint64_t> limit = NumberIn(folder_.get(), "memory.max");
  if (!limit) limit = NumberIn(folder_.get(), "memory.limit_in_bytes");
  std::optional<uint64_t> used = NumberIn(folder_.get(), "memory.current");
  if (!used) used = NumberIn(folder_.get(), "memory.usage_in_bytes");
  if (!limit || !used || *limit >= kNoLimit) return kUnlimited;
  const uint64_t kept = std::max(*limit / kKeptShare, kLeastKept);
  const uint64_t taken = *used - std::min(*used, Reclaimable(folder_.get())) + kept;
  return *limit > taken ? *limit - taken : 0;
}

std::vector<MemoryLimit> MemoryLimitsAbove(const std::string& folder) {
  std::vector<MemoryLimit> limits;
  for (std::string group = folder; ::access(absl::StrCat(group, "/cgroup.procs").c_str(), F_OK) == 0;
       group.erase(group.rfind('/'))) {
    auto opened = OpenFile(group, O_RDONLY | O_DIRECTORY);
    if (!opened.ok()) break;
    const uint64_t left = MemoryRoom(*std::move(opened)).Left();
    if (left != MemoryRoom::kUnlimited) limits.push_back({group, left});
    if (group.find('/') == std::string::npos) break;
  }
  return limits;
}

std::vector<MemoryLimit> MemoryLimitsOf(pid_t pid) {
  auto groups = ReadFile(absl::StrCat("/proc/", pid, "/cgroup"));
  auto mounts = ReadFile("/proc/self/mountinfo");
  std::vector<MemoryLimit> limits;
  if (!groups.ok() || !mounts.ok()) return limits;
  for (const std::string& folder : CgroupFolders(*groups, "", *mounts)) {
    for (MemoryLimit& limit : MemoryLimitsAbove(folder)) limits.push_back(std::move(limit));
  }
  return limits;
}

}  // namespace rekindle::restore
