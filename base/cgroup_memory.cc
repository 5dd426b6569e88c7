#include "base/cgroup_memory.h"

#include <algorithm>
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

// The files of one version, and the line of memory.stat with what can be dropped.
struct Names {
  const char *limit, *usage, *droppable;
};
constexpr Names kVersions[] = {
    {"/memory.max", "/memory.current", "inactive_file"},
    {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"},
};

// Nothing: there is none, or it says "max".
std::optional<uint64_t> NumberIn(const std::string& file) {
  const auto text = ReadFile(file);
  uint64_t number = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &number)) return std::nullopt;
  return number;
}

uint64_t LineIn(const std::string& file, absl::string_view name) {
  const auto text = ReadFile(file);
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t number = 0;
    if (words.first == name && absl::SimpleAtoi(words.second, &number)) return number;
  }
  return 0;
}

uint64_t RoomIn(const std::string& folder) {
  for (const Names& names : kVersions) {
    const std::optional<uint64_t> limit = NumberIn(folder + names.limit);
    const std::optional<uint64_t> usage = NumberIn(folder + names.usage);
    if (!limit || !usage) continue;
    const uint64_t droppable = LineIn(folder + "/memory.stat", names.droppable);
    const uint64_t needed = *usage - std::min(*usage, droppable);
    return *limit - std::min(*limit, needed);
  }
  return UINT64_MAX;
}

}  // namespace

uint64_t RoomInCgroups(const std::vector<std::string>& folders) {
  uint64_t room = UINT64_MAX;
  for (std::string folder : folders) {
    // Above the mount there is nothing that has a limit.
    for (; folder.size() > 1; folder.resize(folder.rfind('/'))) room = std::min(room, RoomIn(folder));
  }
  return room;
}

absl::StatusOr<uint64_t> OwnAvailableMemoryBytes() {
  RK_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemoryBytes());
  const auto cgroups = ReadFile("/proc/self/cgroup"), mounts = ReadFile("/proc/self/mountinfo");
  if (!cgroups.ok() || !mounts.ok()) return available;
  return std::min(available, RoomInCgroups(CgroupFolders(*cgroups, "", *mounts)));
}

}  // namespace rekindle
