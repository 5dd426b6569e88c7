// For tests that do the same many times over.
#pragma once

#include "absl/base/config.h"

namespace rekindle {

// A sanitizer makes each round several times as long and is there for mistakes that many rounds share: fewer
// do.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace rekindle
