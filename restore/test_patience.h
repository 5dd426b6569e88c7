// How long the checks before a restore wait in tests for what somebody else may give back.
#pragma once

#include "absl/time/time.h"

namespace rekindle::restore {

inline constexpr absl::Duration kShort = absl::Milliseconds(20);
inline constexpr absl::Duration kAsLongAsItTakes = absl::Seconds(100);

}  // namespace rekindle::restore
