#include "restore/cgroup_membership.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

struct Mount {
  std::string root;   // the cgroup that is mounted
  std::string point;  // where
  bool unified;
  std::vector<std::string> options;  // of an old hierarchy: among others its controllers, or name=…
};

std::vector<Mount> CgroupMounts(absl::string_view mountinfo) {
  std::vector<Mount> mounts;
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<std::string> where = absl::StrSplit(halves.first, ' ');
    const std::vector<std::string> what = absl::StrSplit(halves.second, ' ');  // type, source, options
    if (where.size() < 5 || what.size() < 3 || (what[0] != "cgroup" && what[0] != "cgroup2")) continue;
    mounts.push_back({where[3], where[4], what[0] == "cgroup2", absl::StrSplit(what[2], ',')});
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

absl::StatusOr<CgroupMembership> CgroupMembership::Of(pid_t pid) {
  auto theirs = ReadFile(absl::StrCat("/proc/", pid, "/cgroup"));
  if (!theirs.ok()) {
    return absl::NotFoundError(absl::StrCat("finding the cgroups of process ", pid, ": it has ended"));
  }
  RK_ASSIGN_OR_RETURN(std::string ours, ReadFile("/proc/self/cgroup"));
  RK_ASSIGN_OR_RETURN(std::string mountinfo, ReadFile("/proc/self/mountinfo"));
  CgroupMembership membership;
  for (const std::string& folder : CgroupFolders(*theirs, ours, mountinfo)) {
    RK_ASSIGN_OR_RETURN(UniqueFd processes, OpenFile(absl::StrCat(folder, "/cgroup.procs"), O_WRONLY));
    membership.groups_.emplace_back(folder, std::move(processes));
  }
  return membership;
}

absl::Status CgroupMembership::Join(pid_t pid) const {
  const std::string number = absl::StrCat(pid);
  for (const auto& [folder, processes] : groups_) {
    if (::write(processes.get(), number.data(), number.size()) != static_cast<ssize_t>(number.size())) {
      return ErrnoStatus(errno, absl::StrCat("putting process ", pid, " into the cgroup ", folder,
                                             ", where who asked for it is (--detach leaves it out of it)"));
    }
  }
  return absl::OkStatus();
}

std::vector<int> CgroupMembership::processes() const {
  std::vector<int> descriptors;
  for (const auto& group : groups_) descriptors.push_back(group.second.get());
  return descriptors;
}

}  // namespace rekindle::restore
