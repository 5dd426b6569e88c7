// A wait that ends in time, also when somebody sets the machine's clock: those of absl::Mutex (before 2023)
// are until a time of day.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace rekindle::daemon {

// For one thread that waits, and any number of those that wake it.
class Wakeup {
 public:
  void Notify() {
    std::lock_guard<std::mutex> lock(mutex_);
    notified_ = true;
    changed_.notify_all();
  }
  // Until somebody has notified it since the last wait, or the time is over.
  void WaitFor(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return notified_; });
    notified_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

}  // namespace rekindle::daemon
