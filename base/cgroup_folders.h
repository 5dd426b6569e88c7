// Where the cgroups of a process are in the file system. Both versions of cgroups, also mixed. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle {

// The folders of the cgroups that `theirs` (/proc/PID/cgroup) names and `ours` does not, below the mounts of
// `mountinfo`. Left out: hierarchies that are not mounted, and cgroups outside the mounted part.
std::vector<std::string> CgroupFolders(absl::string_view theirs, absl::string_view ours,
                                       absl::string_view mountinfo);

// For errors: what a Rekindle in a container needs to be given, to reach those of others.
inline constexpr char kCgroupsForContainer[] =
    "the machine's /sys/fs/cgroup, writable, and its cgroup namespace (docker: -v "
    "/sys/fs/cgroup:/sys/fs/cgroup --cgroupns host; a pod: a hostPath volume)";

// Of the cgroups that `theirs` names and `ours` does not, those that no folder below these mounts leads to,
// as "memory:/docker/one": who sees these mounts is in a container himself, or has not mounted the hierarchy.
// Left out: hierarchies without controllers that are not mounted.
std::vector<std::string> UnreachableCgroups(absl::string_view theirs, absl::string_view ours,
                                            absl::string_view mountinfo);

// The folder of the cgroup in which this process is frozen, itself or by one around it (`docker pause`,
// `systemctl freeze`); empty: it is not, or nobody here can see that. Such a process does nothing, not even
// for who traces it.
std::string FrozenCgroupOf(pid_t pid);

}  // namespace rekindle
