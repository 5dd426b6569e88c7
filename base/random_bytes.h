// Random bytes for secrets and names, from the kernel.
#pragma once

#include <cstddef>

namespace rekindle {

// Fills `out`. Thread-safe; async-signal-safe. Ends the process where the kernel has none, which no kernel
// does that Rekindle runs on.
void FillWithRandomBytes(void* out, size_t size);

}  // namespace rekindle
