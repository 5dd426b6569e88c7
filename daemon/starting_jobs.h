// What jobs that are just being started have taken: until they have a record, nobody else finds that there.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// Of this process alone: two commands that run jobs without a daemon at the same moment don't see each other.
// Thread-safe. It outlives what it gives.
class StartingJobs {
 public:
  // Until the result is dropped nobody else gets this name. AlreadyExists: somebody has it.
  absl::StatusOr<std::shared_ptr<void>> TakeName(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasName(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The same with what this owner's job calls its images.
  absl::StatusOr<std::shared_ptr<void>> TakeImagesName(const std::string& images, uid_t owner)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same with a log, for which several jobs may have one that are not supervised. FailedPrecondition:
  // another job has it, and one of the two is supervised. Null: it is none that is ever cut.
  absl::StatusOr<std::shared_ptr<void>> TakeLog(const std::string& log, bool supervised)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uid_t, std::string>> images_ ABSL_GUARDED_BY(mutex_);
  // By LogKey; whether the job is supervised.
  std::multimap<std::string, bool> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
