// A job that lives in namespaces which CRIU must work in: a PID namespace of its own (a copy in its sandbox,
// a process of a container), because CRIU refuses a tree without the namespace's init, or mounts of its own,
// which CRIU would take an image of that it can't restore.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "criu/installation.h"

namespace rekindle::criu {

// Is it number 1 of the innermost PID namespace that it lives in? False when it has gone.
bool IsInitOfItsPidNamespace(pid_t pid);

// Are its numbers ours? False when it has gone.
bool HasOurPids(pid_t pid);

// Thread-safe.
class JobNamespaces {
 public:
  // Of the tree below `root`. Unimplemented: it has a user namespace of its own. NotFound: it has gone.
  static absl::StatusOr<JobNamespaces> Of(pid_t root);
  // Those that `process`, a container's first or another, lives in: for a job that is to come back beside it.
  // Unimplemented: it has a user namespace of its own. NotFound: there is no such process.
  static absl::StatusOr<JobNamespaces> Around(pid_t process);

  // Must CRIU be started inside? Not for a tree whose root is the init of its namespace: that one CRIU dumps
  // with all its namespaces, from outside. Of one that has our PIDs, and mounts of its own, these alone are
  // entered: all else that is its own CRIU saves.
  bool entered() const { return root_.valid(); }
  // Has it file systems of its own, too?
  bool enters_mounts() const;

  // Does this process live in the very mount namespace that is entered? False when it has gone.
  bool IsAmongItsMounts(pid_t process) const;
  // Of a job that has our PIDs and a network of its own CRIU saves that by programs (ip, iptables-save). It
  // may run them, in the job's mounts, only once these are known to be the machine's (ckpt/mounts_check.h).
  void MountsAreTheMachines();
  bool has_our_network() const { return has_our_network_; }

  // Is the /proc that CRIU finds there that of the job's PID namespace? True when the job has gone.
  bool HasItselfInProc() const;

  // A process's number in its own PID namespace; the same as ours where that is not entered. 0: it has gone.
  pid_t Inside(pid_t pid) const;
  // Our number of a process of the job. NotFound: there is none, or it lives in another namespace still.
  // Looks through all processes of the machine, but for those whose numbers are known.
  absl::StatusOr<pid_t> Outside(pid_t inside) const;
  // From now on those of all processes that live there now are: to be called before time counts.
  void LearnNumbers() const;
  // The numbers of all processes and threads that live there: theirs, ours.
  std::vector<std::pair<pid_t, pid_t>> AllNumbers() const;

  // Before Start(), for a job with file systems of its own, and where CRIU does not keep what it finds out
  // about the kernel: it is told what it has found out here once, and is kept in `directory`. To find it out,
  // it needs a /tmp that it may write to. Where that fails CRIU is left to find out by itself each time.
  void LearnKernel(const Installation& criu, const std::string& directory);

  // Starts CRIU, with one of Rekindle's libraries loaded, as the job sees the machine: its processes, files
  // and network. The program, its libraries and `options.working_directory` are looked up here, and CRIU goes
  // into the job's mounts only when all of them are loaded (enter_mounts.c): what lies in a container is not
  // run with root's rights. What is named in its arguments it looks up there, or, without a leading slash, in
  // the working directory.
  absl::StatusOr<Subprocess> Start(SubprocessOptions options) const;

  // CRIU's --libdir for `plugin`, which is alone in its folder. What is added to `environment`, for Start(),
  // has CRIU load it before it goes into the job's mounts, where that folder has no name.
  absl::StatusOr<std::string> PluginFolder(const std::string& plugin, const std::string& working_directory,
                                           std::vector<std::string>* environment) const;

  // What `work` returns, called on a thread that sees the files and the network as the job does.
  absl::Status Within(absl::FunctionRef<absl::Status()> work) const;

 private:
  struct LearntNumbers {
    absl::Mutex mutex;
    absl::flat_hash_map<pid_t, pid_t> outside ABSL_GUARDED_BY(mutex);  // by the numbers inside
  };

  // `kinds`: CLONE_NEW*, those to enter where they are not ours.
  absl::Status Find(pid_t process, absl::string_view what, int kinds);
  bool LivesThereAs(pid_t pid, pid_t inside) const;
  absl::Status Enter(int flags) const;

  pid_t pid_ = 0;
  std::string pid_namespace_;  // what /proc/PID/ns/pid points to
  UniqueFd root_;              // pidfd; not valid: nothing is entered
  UniqueFd mounts_;            // the mount namespace that is entered; not valid: none
  bool has_our_pids_ = true;   // or nothing is entered
  bool has_our_network_ = true;
  bool runs_programs_ = false;
  std::unique_ptr<LearntNumbers> numbers_ = std::make_unique<LearntNumbers>();
  std::string known_;  // file; empty: CRIU finds out by itself
  int flags_ = 0;      // CLONE_NEW*, of those that are entered
};

}  // namespace rekindle::criu
