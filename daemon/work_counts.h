// What a daemon has done, whoever asked for it, for its metrics.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace rekindle::daemon {

// Thread-safe.
class OutcomeCount {
 public:
  void Add(const absl::Status& outcome) { ++(outcome.ok() ? done_ : failed_); }
  uint64_t done() const { return done_.load(); }
  uint64_t failed() const { return failed_.load(); }

 private:
  std::atomic<uint64_t> done_{0}, failed_{0};
};

// What was refused before it was begun is in none.
struct WorkCounts {
  OutcomeCount captures, restores, clones;
  std::atomic<int64_t> frozen_ns{0};      // of the jobs of all images
  std::atomic<uint64_t> stored_bytes{0};  // that images added to the store
};

}  // namespace rekindle::daemon
