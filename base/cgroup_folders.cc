#include "base/cgroup_folders.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/unique_fd.h"

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

// Is it a mount of the hierarchy with these controllers?
bool IsOf(const Mount& mount, absl::string_view controllers) {
  if (controllers.empty() || mount.unified) return controllers.empty() && mount.unified;
  const std::vector<std::string> wanted = absl::StrSplit(controllers, ',');
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
    return std::find(mount.options.begin(), mount.options.end(), name) != mount.options.end();
  });
}

// Where `path`, a cgroup of the hierarchy with these controllers, is in the file system; empty: nowhere.
std::string FolderOf(const std::vector<Mount>& mounts, absl::string_view controllers,
                     absl::string_view path) {
  for (const Mount& mount : mounts) {
    if (!IsOf(mount, controllers)) continue;
    absl::string_view below = path;
    const std::string root = mount.root == "/" ? "" : mount.root;
    if (!absl::ConsumePrefix(&below, root) || (!below.empty() && below[0] != '/')) continue;
    // Outside our cgroup namespace: the kernel tells how far up, but not the names on the way.
    if (below == "/.." || absl::StartsWith(below, "/../")) continue;
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

struct Membership {
  std::string controllers;  // empty: of the unified hierarchy
  std::string path;
};

// The lines of `theirs` that are not in `ours`.
std::vector<Membership> Differing(absl::string_view theirs, absl::string_view ours) {
  const std::vector<std::string> shared = absl::StrSplit(ours, '\n');
  std::vector<Membership> memberships;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(theirs, '\n', absl::SkipEmpty()))) {
    if (std::find(shared.begin(), shared.end(), line) != shared.end()) continue;
    std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() == 3) memberships.push_back({std::move(fields[1]), std::move(fields[2])});
  }
  return memberships;
}

// As CgroupFolders.
std::vector<std::string> FoldersIn(const std::vector<Mount>& mounts, absl::string_view theirs,
                                   absl::string_view ours) {
  std::vector<std::string> folders;
  for (const Membership& membership : Differing(theirs, ours)) {
    std::string folder = FolderOf(mounts, membership.controllers, membership.path);
    if (!folder.empty()) folders.push_back(std::move(folder));
  }
  return folders;
}

// Those that this process sees. A machine with many containers has thousands of mounts, and this is asked for
// each job each second: they are read again only when the kernel says that there are other ones.
class OwnCgroupMounts {
 public:
  // Null: the list can't be read.
  std::shared_ptr<const std::vector<Mount>> Now() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // A child may be among other mounts than its parent.
    if (const pid_t self = ::getpid(); !list_.valid() || self != reader_) {
      mounts_ = nullptr;
      absl::StatusOr<UniqueFd> list = OpenFile("/proc/self/mountinfo", O_RDONLY);
      if (!list.ok()) return nullptr;
      list_ = *std::move(list);
      reader_ = self;
    }
    pollfd entry{list_.get(), POLLPRI, 0};
    const bool other_ones = ::poll(&entry, 1, 0) != 0;
    if (mounts_ != nullptr && !other_ones) return mounts_;
    mounts_ = nullptr;
    // After the question: what comes meanwhile is in the next answer.
    const absl::StatusOr<std::string> text = ReadFile("/proc/self/mountinfo");
    if (text.ok()) mounts_ = std::make_shared<const std::vector<Mount>>(CgroupMounts(*text));
    return mounts_;
  }

 private:
  absl::Mutex mutex_;
  pid_t reader_ ABSL_GUARDED_BY(mutex_) = 0;
  UniqueFd list_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<Mount>> mounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<std::string> CgroupFolders(absl::string_view theirs, absl::string_view ours,
                                       absl::string_view mountinfo) {
  return FoldersIn(CgroupMounts(mountinfo), theirs, ours);
}

std::vector<std::string> UnreachableCgroups(absl::string_view theirs, absl::string_view ours,
                                            absl::string_view mountinfo) {
  const std::vector<Mount> mounts = CgroupMounts(mountinfo);
  const auto limits = [](const Membership& membership) {
    return !membership.controllers.empty() && !absl::StartsWith(membership.controllers, "name=");
  };
  // Beside old hierarchies with controllers the unified one need have none.
  const std::vector<Membership> all = Differing(theirs, "");
  const bool only_unified = std::none_of(all.begin(), all.end(), limits);
  std::vector<std::string> unreachable;
  for (const Membership& membership : Differing(theirs, ours)) {
    if (!FolderOf(mounts, membership.controllers, membership.path).empty()) continue;
    const bool counts = limits(membership) || (membership.controllers.empty() && only_unified) ||
                        std::any_of(mounts.begin(), mounts.end(),
                                    [&](const Mount& mount) { return IsOf(mount, membership.controllers); });
    if (counts) unreachable.push_back(absl::StrCat(membership.controllers, ":", membership.path));
  }
  return unreachable;
}

std::string FrozenCgroupOf(pid_t pid) {
  static auto& own_mounts = *new OwnCgroupMounts();
  const auto theirs = ReadFile(absl::StrCat("/proc/", pid, "/cgroup"));
  if (!theirs.ok()) return "";
  const auto mounts = own_mounts.Now();
  if (mounts == nullptr) return "";
  for (const std::string& folder : FoldersIn(*mounts, *theirs, "")) {
    if (IsFrozen(folder)) return folder;
  }
  return "";
}

}  // namespace rekindle
