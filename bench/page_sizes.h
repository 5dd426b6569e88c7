#pragma once

#include <cstdint>

namespace rekindle::bench {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = 2u << 20;

}  // namespace rekindle::bench
