// Whether two start times of a process, in ticks since boot, are the same process's.
#pragma once

#include <cstdint>

namespace rekindle {

// Of ProcessStat::start_ticks, one of which another process may have read: in a time namespace whose clock is
// not whole ticks ahead the kernel rounds to another tick. No PID is used again within so short a time.
inline bool IsSameStart(uint64_t a, uint64_t b) { return a > b ? a - b <= 1 : b - a <= 1; }

}  // namespace rekindle
