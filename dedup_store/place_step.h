// For tests that break a store at one place after the other.
#pragma once

#include "base/sanitized.h"

namespace rekindle::store {

// From one place to the next.
inline constexpr int kPlaceStep = kSanitized ? 5 : 1;

}  // namespace rekindle::store
