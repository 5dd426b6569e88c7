// Time and memory as the tests of policies count them.
#pragma once

#include <cstdint>

#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

inline constexpr Micros kSecond = 1'000'000, kMinute = 60 * kSecond, kHour = 60 * kMinute;
inline constexpr uint64_t kMb = 1 << 20;

}  // namespace rekindle::functions
