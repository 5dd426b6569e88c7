// The cgroups that a process is in, to put others beside it: a job that the service brings back for a client
// belongs to whoever limits and accounts for that client (a batch system, a systemd unit).
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// The folders of the cgroups that `theirs` (/proc/PID/cgroup) names and `ours` does not, below the mounts of
// `mountinfo`. Left out: hierarchies that are not mounted, and cgroups outside the mounted part.
std::vector<std::string> CgroupFolders(absl::string_view theirs, absl::string_view ours,
                                       absl::string_view mountinfo);

// Movable; const members are thread-safe.
class CgroupMembership {
 public:
  // Only cgroups in which this process is not itself. NotFound: there is no such process.
  static absl::StatusOr<CgroupMembership> Of(pid_t pid);

  // Puts a process there, with all its threads. The error names the cgroup; the process may then be in some.
  absl::Status Join(pid_t pid) const;
  // Open cgroup.procs files: who writes "0" into each is there. They live as long as this.
  std::vector<int> processes() const;

 private:
  std::vector<std::pair<std::string, UniqueFd>> groups_;  // folder, its cgroup.procs
};

}  // namespace rekindle::restore
