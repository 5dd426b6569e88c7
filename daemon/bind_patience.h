// Addresses that a daemon which was killed has had until now: a child that it was just making has its sockets
// for a moment longer (base/held_lock.h).
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/held_lock.h"

namespace rekindle::daemon {

// Calls `is_in_use` until it says no. False: it has said yes for as long as such a child may take.
inline bool AwaitAddress(absl::FunctionRef<bool()> is_in_use) {
  for (const Deadline child_takes(kForkMayTake); is_in_use();) {
    if (child_takes.passed()) return false;
    absl::SleepFor(kForkMayTake / 50);
  }
  return true;
}

}  // namespace rekindle::daemon
