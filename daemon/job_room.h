// How many jobs one user may have: each has a record and a log, a supervised one a thread of the daemon, and
// no call needs to wait for one that was started with --detach.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/caller.h"

namespace rekindle::daemon {

class Node;

// Those that are being started. In a std::shared_ptr. Thread-safe.
class JobsBeingStarted : public std::enable_shared_from_this<JobsBeingStarted> {
 public:
  // Room for so many more, of each until its part of the result goes: it is listed by then, or does not run.
  // `all`: with these.
  std::vector<std::shared_ptr<void>> Begin(uid_t user, size_t count, size_t* all) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::map<uid_t, size_t> of_each_ ABSL_GUARDED_BY(mutex_);
};

// To be held until the job is started, of several each until that one is: or it would count twice.
// ResourceExhausted: the caller has too many that have not ended; administrators may have any number.
absl::StatusOr<std::shared_ptr<void>> TakeRoomForJob(Node& node, const Caller& caller);
absl::StatusOr<std::vector<std::shared_ptr<void>>> TakeRoomForJobs(Node& node, const Caller& caller,
                                                                   size_t count);

}  // namespace rekindle::daemon
