#include "restore/cgroup_membership.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/cgroup_folders.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
absl::StatusOr<CgroupMembership> CgroupMembership::OfContainer(pid_t pid) {
  const std::string list = absl::StrCat("/proc/", pid, "/cgroup");
  auto theirs = ReadFile(list);
  RK_ASSIGN_OR_RETURN(std::string ours, ReadFile("/proc/self/cgroup"));
  RK_ASSIGN_OR_RETURN(std::string mountinfo, ReadFile("/proc/self/mountinfo"));
  const std::vector<std::string> unreachable = UnreachableCgroups(theirs.value_or(""), ours, mountinfo);
  if (!unreachable.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the cgroups of the container of process ", pid, " can't be reached from here (", unreachable[0],
        "), and without them a job would neither have the container's limits nor end with it: is Rekindle in "
        "a container itself? Give that ",
        kCgroupsForContainer));
  }
  absl::StatusOr<CgroupMembership> membership = Of(pid);
  if (membership.ok() || !ReadFile(list).ok()) return membership;
  // A folder that is hidden by another mount, or can't be written.
  return absl::FailedPreconditionError(absl::StrCat(
      "going into the cgroups of the container of process ", pid, ": ", membership.status().message(),
      "; is Rekindle in a container itself? Give that ", kCgroupsForContainer));
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
