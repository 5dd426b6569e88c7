// Waits for a condition under an absl::Mutex up to a moment on the monotonic clock. Those of absl::Mutex
// itself (before 2023) are until a time of day: one that is set forward would end them early, and who waited
// take it for a failure; one that is set back prolongs them by as much, and what stands still meanwhile
// stands so long.
#pragma once

#include "absl/synchronization/mutex.h"
#include "base/deadline.h"

namespace rekindle {

// `mutex` is held. Is the condition true? Thread-safe. Not in a child of fork() that has begun no program:
// what tells of the time is a thread, one for all of the process.
bool AwaitUntil(absl::Mutex& mutex, const absl::Condition& condition, const Deadline& deadline);

}  // namespace rekindle
