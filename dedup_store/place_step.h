// For tests that break a store at one place after the other.
#pragma once

#include "absl/base/config.h"

namespace rekindle::store {

// From one place to the next. A sanitizer makes each round several times as long and is there for mistakes
// that many places share: every fifth does.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr int kPlaceStep = 5;
#else
inline constexpr int kPlaceStep = 1;
#endif

}  // namespace rekindle::store
