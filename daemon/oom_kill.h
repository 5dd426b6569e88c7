// Did the kernel's OOM killer end a process?
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace rekindle::daemon {

// Looks through the kernel's log for a kill of `pid` at or after `since_boot_ns` (CLOCK_BOOTTIME). False also
// where the log may not be read.
bool WasKilledForMemory(pid_t pid, int64_t since_boot_ns);

}  // namespace rekindle::daemon
