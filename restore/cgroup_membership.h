// The cgroups that a process is in, to put others beside it: a job that the service brings back for a client
// belongs to whoever limits and accounts for that client (a batch system, a systemd unit).
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// Movable; const members are thread-safe.
class CgroupMembership {
 public:
  // Only cgroups in which this process is not itself. NotFound: there is no such process.
  static absl::StatusOr<CgroupMembership> Of(pid_t pid);
  // The same, for who must have all of them: of a container's process. FailedPrecondition: some can't be
  // reached from here, as in a container that does not have the machine's cgroups.
  static absl::StatusOr<CgroupMembership> OfContainer(pid_t pid);

  // Puts a process there, with all its threads. The error names the cgroup; the process may then be in some.
  absl::Status Join(pid_t pid) const;
  // Open cgroup.procs files: who writes "0" into each is there. They live as long as this.
  std::vector<int> processes() const;

 private:
  std::vector<std::pair<std::string, UniqueFd>> groups_;  // folder, its cgroup.procs
};

}  // namespace rekindle::restore
