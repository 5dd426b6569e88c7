// Which is cheaper here and now, small pages or huge ones? Learnt by measuring.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::restore {

inline constexpr uint64_t kHugePageBytes = 2u << 20;

enum class Backing { kSmall, kHuge };

// Filling memory with huge pages saves 511 of 512 faults and is several times faster as a rule. It is several
// times slower where huge pages must be made first (fragmented memory) or where a hypervisor took the free
// memory back and has to find it again. Which it is changes from one huge page to the next, so the costs are
// followed and the way that is not taken is tried now and then. Thread-safe.
class BackingCosts {
 public:
  // For the next block of kHugePageBytes.
  Backing Next();

  // A huge page was made, which took so long.
  void Made(double seconds);
  // None was to be had. After several in a row none is asked for any more.
  void NotMade();
  // Pages were copied into a block of this backing, faults included.
  void Copied(Backing backing, size_t bytes, double seconds);

 private:
  // A moving average that a change of the machine's mind moves within a few blocks.
  class Average {
   public:
    // `part`: of a block. What a part of one took says less than what a whole one did: the moments in which
    // its thread had to wait for a processor look as if each part had taken so much longer.
    void Add(double seconds_a_block, double part);
    double value() const { return sum_ / weight_; }
    bool known() const;

   private:
    double sum_ = 0, weight_ = 0;
  };
  double HugeCost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double SmallCost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Average making_ ABSL_GUARDED_BY(mutex_), huge_copy_ ABSL_GUARDED_BY(mutex_),
      small_copy_ ABSL_GUARDED_BY(mutex_);
  uint64_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t since_trial_ ABSL_GUARDED_BY(mutex_) = 0;
  int failures_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::restore
