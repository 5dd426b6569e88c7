// What an error of an older version was made of: that has its message alone to tell it.
#pragma once

#include "absl/status/status.h"

namespace rekindle {

// For errors that come from another process without what they were made of (base/error_cause.h).
absl::Status WithCauseInWords(absl::Status status);

}  // namespace rekindle
