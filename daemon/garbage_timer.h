// Garbage of the store, collected on a thread of its own once there is some.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/wakeup.h"

namespace rekindle::daemon {

// Thread-safe; its lock is held while nothing else is called.
class GarbageTimer {
 public:
  explicit GarbageTimer(std::function<absl::Status()> collect) : collect_(std::move(collect)) {}
  ~GarbageTimer() { Stop(); }

  // Within that time, and not more often than now and then; with 0, as soon as it can.
  void CollectSoon(double seconds) ABSL_LOCKS_EXCLUDED(mutex_);
  // No new collection begins.
  void BeginStop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for one that has begun, too.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<absl::Status()> collect_;
  Wakeup wakeup_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Of CLOCK_MONOTONIC.
  int64_t collect_at_ns_ ABSL_GUARDED_BY(mutex_) = INT64_MAX;
  int64_t collected_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
