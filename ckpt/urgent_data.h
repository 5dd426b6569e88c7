// Urgent data (MSG_OOB) in TCP connections. CRIU reads what a connection has for its program only up to the
// place of it, and what lies behind would be lost without a word.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace rekindle::ckpt {

// Of a job whose processes stand still; its connections may get more meanwhile. FailedPrecondition: one of
// its TCP connections has data that it has not read, and the place of urgent data in it; says which. What
// can't be looked at is passed over. Thread-safe.
absl::Status CheckNoUnreadUrgentData(absl::Span<const pid_t> pids);

}  // namespace rekindle::ckpt
