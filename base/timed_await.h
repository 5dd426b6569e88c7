// Waits for a condition under an absl::Mutex up to a moment on the monotonic clock. Those of absl::Mutex
// itself (before 2023) are until a time of day: one that is set forward would end them early, and who waited
// take it for a failure. One that is set back prolongs them still.
#pragma once

#include "absl/synchronization/mutex.h"
#include "base/deadline.h"

namespace rekindle {

// `mutex` is held. Is the condition true?
inline bool AwaitUntil(absl::Mutex& mutex, const absl::Condition& condition, const Deadline& deadline) {
  for (;;) {
    const absl::Duration left = deadline.left();
    if (mutex.AwaitWithTimeout(condition, left)) return true;
    if (left == absl::ZeroDuration()) return false;
  }
}

}  // namespace rekindle
