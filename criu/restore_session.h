// One restore driven through CRIU's RPC (`criu swrk`): no shell and no action script, a call-back at each
// stage, and the restored root task becomes our own child.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/timeline.h"
#include "criu/command_line.h"
#include "criu/hung_restore.h"
#include "criu/job_namespaces.h"

namespace rekindle::criu {

class RestoreObserver {
 public:
  virtual ~RestoreObserver() = default;
  // All tasks are made and their memory is laid out, and none has run yet (CRIU's post-restore stage). `root`
  // is the PID of the root task in our namespace. A status other than OK makes CRIU kill the tree and the
  // restore fail with it.
  virtual absl::Status TasksReady(pid_t root) = 0;
};

struct RestoredTree {
  pid_t root = 0;     // a child of the calling process: wait for it
  Timeline timeline;  // of CRIU's stages; only with a log_level of kLogLevelWithStages
};

// Runs the restore to its end. `inherit_fd` numbers are descriptors of this process. On failure nothing of
// the tree is left and the status is that of FailureStatus(). `observer` may be null. `cancel_fd` (-1: none)
// becoming readable kills the restore (Cancelled). Aborted: a process of the job was killed meanwhile. The
// job comes back in `namespaces`, which may be ours; all PIDs are in our numbers.
absl::StatusOr<RestoredTree> RunRestore(const Installation& criu, const RestoreOptions& options,
                                        const JobNamespaces& namespaces, RestoreObserver* observer,
                                        int cancel_fd);

// A `criu swrk` that somebody else has started, and will clean up after.
struct CriuConnection {
  int socket = -1;             // its RPC socket
  int pidfd = -1;              // readable when it has ended
  int work_directory_fd = -1;  // a descriptor of the process at the other end of its socket, as CRIU sees it
  std::string log;             // where its log is for us
  FindDead find_dead;          // none: for a dead process it may wait without end
};

// Runs one restore over it. RestoreOptions::images_directory is a path as CRIU sees it; `inherit_fd` has
// CRIU's own numbers; work_directory is not used. The root's PID is that in CRIU's PID
// namespace, also the one that `tasks_ready` is given (see RestoreObserver). On failure the caller takes down
// what is left.
absl::Status RunRestoreOver(const CriuConnection& criu, const RestoreOptions& options,
                            const std::function<absl::Status(pid_t root)>& tasks_ready, int cancel_fd,
                            RestoredTree* tree);

}  // namespace rekindle::criu
