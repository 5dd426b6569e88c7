// Calls that take images of a supervised job which are not its supervisor's own: one at a time, each of them
// at a boundary of the job's choice where it comes to one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// Between the thread of such a call (Begin, IsFrozen, End) and the job's own. Thread-safe; its lock is held
// while nothing else is called.
class ImageVisits {
 public:
  // `wake`: has the job's thread look at WhichWaits().
  explicit ImageVisits(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Returns when the job may be frozen, or is not made ready in time; then, or with Cancelled, End() has to
  // follow. `is_received`, asked now and then: is the job's thread there to do so? Without it there is
  // nothing to wait for. `number`: of the visit, 0 as long as it has none.
  absl::Status Begin(const std::function<bool()>& is_received, const std::atomic<bool>& cancelled,
                     uint64_t* number) ABSL_LOCKS_EXCLUDED(mutex_);
  // The image has all of the job's memory.
  void IsFrozen(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(uint64_t number, bool stored) ABSL_LOCKS_EXCLUDED(mutex_);

  // The visit for which the job is to be made ready; 0: none.
  uint64_t WhichWaits() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Has it not ended yet?
  bool IsUnderWay(uint64_t number) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The job is ready for it.
  void LetFreeze(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the job need not stand still for it any more, within `limit`: it has ended, or all of the job's
  // memory is in the image, where that does not have to be stored for it (`until_stored`).
  bool AwaitOver(uint64_t number, bool until_stored, absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_);
  // Is there an image, or, unless `until_stored`, all that it takes?
  bool HasImage(uint64_t number, bool until_stored) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  // The last number given, that of the visit under way (0: none), whether the job is ready for it; the last
  // that had all memory, and that was stored.
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0, now_ ABSL_GUARDED_BY(mutex_) = 0;
  bool may_freeze_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t frozen_ ABSL_GUARDED_BY(mutex_) = 0, stored_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::daemon
