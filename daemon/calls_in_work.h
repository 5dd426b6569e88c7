// The calls of functions that are in work, so that the daemon's end can wait for them.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/timed_await.h"

namespace rekindle::daemon {

// In a std::shared_ptr. Thread-safe.
class CallsInWork : public std::enable_shared_from_this<CallsInWork> {
 public:
  // One more, until the last copy of this goes. Null: none is taken any more.
  std::shared_ptr<void> Begin() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!taken_) return nullptr;
    ++count_;
    return std::shared_ptr<void>(this, [calls = shared_from_this()](void*) { calls->End(); });
  }
  void TakeNoMore() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    taken_ = false;
  }
  // Returns when there is none, or at `deadline`.
  void Await(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_,
               absl::Condition(
                   +[](int* count) { return *count == 0; }, &count_),
               deadline);
  }

 private:
  void End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --count_;
  }

  absl::Mutex mutex_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = true;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::daemon
