// Debian's Abseil is built to look for cycles at each lock of a Mutex while another is held, which costs a
// daemon that stores an image processor time beside the job. What is shipped goes without; builds with
// assertions look.
#pragma once

#include "absl/synchronization/mutex.h"

namespace rekindle {

// To be called first in main.
inline void LeaveOutDeadlockChecks() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace rekindle
