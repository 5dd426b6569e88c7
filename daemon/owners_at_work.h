// Who is at work with what belongs to one owner, and tidying up behind the last of them. Owners do not wait
// for one another, however long that takes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// Thread-safe.
class OwnersAtWork {
 public:
  // `tidy` is called without a lock, for one owner by one thread at a time, while nobody is at work with what
  // is his; it must not begin such work itself.
  explicit OwnersAtWork(std::function<void(uid_t owner)> tidy) : tidy_(std::move(tidy)) {}

  // As long as there is one for an owner nothing of his is tidied. Waits until that has been done which is
  // under way.
  class Work {
   public:
    Work(OwnersAtWork& owners, uid_t owner);
    ~Work();  // tidies, after the last one
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    OwnersAtWork& owners_;
    const uid_t owner_;
  };

  // As things are now. Where somebody is at work, that is done when he has finished.
  void TidyUnlessAtWork(uid_t owner) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void AwaitTidied(uid_t owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the lock back meanwhile.
  void Tidy(uid_t owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(uid_t owner)> tidy_;
  absl::Mutex mutex_;
  std::map<uid_t, int> at_work_ ABSL_GUARDED_BY(mutex_);
  std::set<uid_t> tidied_ ABSL_GUARDED_BY(mutex_);  // right now
};

}  // namespace rekindle::daemon
