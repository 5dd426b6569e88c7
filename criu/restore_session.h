// One restore driven through CRIU's RPC (`criu swrk`): no shell and no action script, a call-back at each
// stage, and the restored root task becomes our own child.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "criu/command_line.h"

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
  pid_t root = 0;  // a child of the calling process: wait for it
};

// Runs the restore to its end. RestoreOptions::detach is implied; `inherit_fd` numbers are descriptors of
// this process. On failure nothing of the tree is left and the status is that of FailureStatus(). `observer`
// may be null. `cancel_fd` (-1: none) becoming readable kills the restore (Cancelled).
absl::StatusOr<RestoredTree> RunRestore(const Installation& criu, const RestoreOptions& options,
                                        RestoreObserver* observer, int cancel_fd);

}  // namespace rekindle::criu
