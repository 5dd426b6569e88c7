// A moment up to which something is waited for, on the monotonic clock: whoever sets the machine's time makes
// no wait shorter or longer.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace rekindle {

// Thread-safe once made.
class Deadline {
 public:
  // As far away as this; InfiniteDuration: never.
  explicit Deadline(absl::Duration patience) : patience_(patience), begin_(SteadyClock::now()) {}

  // Never less than nothing.
  absl::Duration left() const {
    return std::max(patience_ - absl::FromChrono(SteadyClock::now() - begin_), absl::ZeroDuration());
  }
  bool passed() const { return left() == absl::ZeroDuration(); }
  // The same for poll(): rounded up, so that who waits so long does not spin at the end.
  int left_ms() const {
    if (patience_ == absl::InfiniteDuration()) return -1;
    const int64_t left_ms = absl::ToInt64Milliseconds(absl::Ceil(left(), absl::Milliseconds(1)));
    return static_cast<int>(std::min<int64_t>(left_ms, INT_MAX));
  }

 private:
  const absl::Duration patience_;
  const SteadyClock::time_point begin_;
};

}  // namespace rekindle
