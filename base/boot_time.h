// The machine's time since boot, as a process of whatever time namespace sees it.
#pragma once

#include <cstdint>

namespace rekindle {

// By how much CLOCK_BOOTTIME is ahead of the machine's here, in nanoseconds: in a time namespace of its own
// the kernel tells a process all times since boot by that clock. Thread-safe.
int64_t BoottimeOffsetNanos();

}  // namespace rekindle
