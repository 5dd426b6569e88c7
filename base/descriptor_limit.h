// How many descriptors this process may have open.
#pragma once

#include <cstdint>

namespace rekindle {

// As many as the hard limit allows: each connection, child and open file of the store is one. Done once, by
// the programs themselves, before they start threads.
void RaiseDescriptorLimit();

// For a job between fork and exec: the limit that we were started with. A program that knows nothing of
// larger numbers may use select(), or close all that it might have. Async-signal-safe.
void RestoreDescriptorLimit();

// The limit that holds now.
uint64_t DescriptorLimit();

// What RestoreDescriptorLimit puts back.
uint64_t OriginalDescriptorLimit();

}  // namespace rekindle
