#include "base/cgroup_folders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/mountinfo.h"

namespace rekindle {
namespace {

struct Mount {
  std::string root;   // the cgroup that is mounted
  std::string point;  // where
  bool unified;
  std::vector<std::string> options;  // of an old hierarchy: among others its controllers, or name=…
};

std::vector<Mount> CgroupMounts(absl::string_view mountinfo) {
  std::vector<Mount> mounts;
  for (MountLine& mount : ParseMountinfo(mountinfo)) {
    if (mount.type != "cgroup" && mount.type != "cgroup2") continue;
    mounts.push_back(
        {std::move(mount.root), std::move(mount.point), mount.type == "cgroup2", std::move(mount.options)});
  }
  return mounts;
}

// Where `path`, a cgroup of the hierarchy with these controllers, is in the file system; empty: nowhere.
std::string FolderOf(const std::vector<Mount>& mounts, absl::string_view controllers,
                     absl::string_view path) {
  const std::vector<std::string> wanted = absl::StrSplit(controllers, ',');
  for (const Mount& mount : mounts) {
    const bool right =
        controllers.empty()
            ? mount.unified
            : !mount.unified && std::all_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
                return std::find(mount.options.begin(), mount.options.end(), name) != mount.options.end();
              });
    if (!right) continue;
    absl::string_view below = path;
    const std::string root = mount.root == "/" ? "" : mount.root;
    if (!absl::ConsumePrefix(&below, root) || (!below.empty() && below[0] != '/')) continue;
    return absl::StrCat(mount.point, below == "/" ? "" : below);
  }
  return "";
}

// Of the unified hierarchy and of an old one, with the lines that say so.
bool IsFrozen(const std::string& folder) {
  const auto events = ReadFile(absl::StrCat(folder, "/cgroup.events"));
  if (events.ok() && absl::StrContains(*events, "frozen 1")) return true;
  const auto state = ReadFile(absl::StrCat(folder, "/freezer.state"));
  return state.ok() && !absl::StrContains(*state, "THAWED");
}

}  // namespace

std::vector<std::string> CgroupFolders(absl::string_view theirs, absl::string_view ours,
                                       absl::string_view mountinfo) {
  const std::vector<Mount> mounts = CgroupMounts(mountinfo);
  const std::vector<std::string> shared = absl::StrSplit(ours, '\n');
  std::vector<std::string> folders;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(theirs, '\n', absl::SkipEmpty()))) {
    if (std::find(shared.begin(), shared.end(), line) != shared.end()) continue;
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string folder = FolderOf(mounts, fields[1], fields[2]);
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

std::string FrozenCgroupOf(pid_t pid) {
  const auto theirs = ReadFile(absl::StrCat("/proc/", pid, "/cgroup"));
  const auto mountinfo = ReadFile("/proc/self/mountinfo");
  if (!theirs.ok() || !mountinfo.ok()) return "";
  for (const std::string& folder : CgroupFolders(*theirs, "", *mountinfo)) {
    if (IsFrozen(folder)) return folder;
  }
  return "";
}

}  // namespace rekindle
