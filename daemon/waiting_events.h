// How many asynchronous calls of functions have been accepted and are not answered, and what they hold of the
// daemon's memory meanwhile: nobody waits for them, so that nothing else bounds it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// Thread-safe.
class WaitingEvents {
 public:
  struct Limits {
    // Of all functions together, and of those of one user, root excepted.
    size_t all = 10'000, of_one = 2500;
    uint64_t bytes = uint64_t{256} << 20, bytes_of_one = uint64_t{64} << 20;
  };
  // What was refused: because of all that wait, and because of those for one user's functions.
  struct Refusals {
    uint64_t all = 0, of_one = 0;
  };

  WaitingEvents() : WaitingEvents(Limits()) {}
  explicit WaitingEvents(const Limits& limits) : limits_(limits) {}

  // One of a function of `owner`. ResourceExhausted: as many wait as may, or what they hold is as much.
  absl::Status Add(uid_t owner, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // One that was added with the same.
  void Remove(uid_t owner, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  Refusals refusals() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Held {
    size_t events = 0;
    uint64_t bytes = 0;
  };
  const Limits limits_;
  mutable absl::Mutex mutex_;
  Held all_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, Held> of_each_ ABSL_GUARDED_BY(mutex_);
  Refusals refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
