// Frames that were found to be damaged since the store was opened, and not whole since. No new image refers
// to them: a wrong bit costs the images that have it, and none that follow.
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "dedup_store/pack.h"
#include "dedup_store/store.h"

namespace rekindle::store {

// Thread-safe.
class DamagedFrames {
 public:
  // False: it was known.
  bool Add(FrameId frame) {
    absl::MutexLock lock(&mutex_);
    any_ = true;
    return frames_.insert(frame).second;
  }

  // It was read again, and is as it was written.
  void Remove(FrameId frame) {
    absl::MutexLock lock(&mutex_);
    frames_.erase(frame);
  }

  bool any() const { return any_; }
  bool Has(FrameId frame) const {
    if (!any_) return false;
    absl::MutexLock lock(&mutex_);
    return frames_.contains(frame);
  }
  bool HasPage(const Pack& pack, uint32_t page) const {
    return any_ && Has({pack.id(), pack.FrameOfPage(page)});
  }

 private:
  std::atomic<bool> any_{false};
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<FrameId> frames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::store
