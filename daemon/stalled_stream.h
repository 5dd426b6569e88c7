// Notices that whoever is at the other end of a stream takes nothing of it any more, or sends nothing. By
// itself who waits for that waits for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// Thread-safe; one wait at a time.
class StalledStream {
 public:
  // `give_up` is called once, from a thread of its own, when one wait takes longer than `patience`: it has to
  // make that wait end. Null: nobody is given up.
  StalledStream(absl::Duration patience, std::function<void()> give_up);
  ~StalledStream();

  // While it lives something is being sent, or waited for.
  class Waiting {
   public:
    explicit Waiting(StalledStream& stream) : stream_(stream) { stream_.SetWaiting(true); }
    ~Waiting() { stream_.SetWaiting(false); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StalledStream& stream_;
  };

  bool given_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return given_up_;
  }

 private:
  void SetWaiting(bool waiting) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    waiting_ = waiting;
    if (waiting) ++waits_;
  }
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration patience_;
  const std::function<void()> give_up_;
  mutable absl::Mutex mutex_;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;  // that have begun
  std::thread thread_;
};

}  // namespace rekindle::daemon
