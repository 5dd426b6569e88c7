// Calls beside the one that a command is about: each on a thread of its own, so that nobody waits for one
// that may take long.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::cli {

// Thread-safe.
class SideCalls {
 public:
  SideCalls() = default;
  ~SideCalls() { AwaitAll(); }
  SideCalls(const SideCalls&) = delete;
  SideCalls& operator=(const SideCalls&) = delete;

  // Where the kernel makes no more threads, on the one that has called.
  void Begin(std::function<void()> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Also those that they begin. Not to be called by one of them.
  void AwaitAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::cli
