// What the kernel says of a process's end, as wait() has it.
#pragma once

#include "base/subprocess.h"

namespace rekindle {

// Of a process that has ended; async-signal-safe.
ExitState ExitStateOf(int wait_status);

}  // namespace rekindle
