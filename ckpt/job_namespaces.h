// A job that lives in a PID namespace of its own: a copy in its sandbox, a process of a container. CRIU must
// dump it from inside, because it refuses a tree without the namespace's init.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {

// Is it number 1 of the innermost PID namespace that it lives in? False when it has gone.
bool IsInitOfItsPidNamespace(pid_t pid);

// Thread-safe.
class JobNamespaces {
 public:
  // Of the tree below `root`. Unimplemented: it has a user namespace of its own.
  static absl::StatusOr<JobNamespaces> Of(pid_t root);

  // Must CRIU be started inside? Not for a tree whose root is the init of its namespace: that one CRIU dumps
  // with all its namespaces, from outside.
  bool entered() const { return root_.valid(); }

  // A process's number in its own PID namespace; the same as ours where that is not entered. 0: it has gone.
  pid_t Inside(pid_t pid) const;
  // Our number of a process of the job. NotFound: there is none, or it lives in another namespace still.
  absl::StatusOr<pid_t> Outside(pid_t inside) const;

  // Starts a program as the job sees the machine: its processes, files and network. Paths are looked up
  // there.
  absl::StatusOr<Subprocess> Start(const SubprocessOptions& options) const;

 private:
  pid_t pid_ = 0;
  std::string pid_namespace_;  // what /proc/PID/ns/pid points to
  UniqueFd root_;              // pidfd; not valid: nothing is entered
  int flags_ = 0;              // CLONE_NEW*, of those that differ from ours
};

}  // namespace rekindle::ckpt
