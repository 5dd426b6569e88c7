// The variables that hold numbers and switches. What reads them takes its default for a value that it does
// not understand, so the programs refuse such a value when they start.
#pragma once

#include "absl/status/status.h"

namespace rekindle::daemon {

// InvalidArgument: names a variable whose value can't be understood, and what it takes. An empty one counts
// as one that is not set.
absl::Status CheckEnvironment();
// The same of those of the daemon alone.
absl::Status CheckDaemonEnvironment();

}  // namespace rekindle::daemon
