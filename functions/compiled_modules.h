// Compiled modules of a layer, which its owner's program has left in a folder of his.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace rekindle::functions {

// Puts what `compiled` (an open folder) has in folders __pycache__ into those of `layer`, in whose other
// folders nothing is added or changed. What is there already is replaced. What lies in it besides, and may
// be anything, is left out. OutOfRange: more than `most_bytes`; ResourceExhausted: the disk is full; then
// some are there. Thread-safe.
absl::Status AddCompiledModules(int compiled, const std::string& layer, uint64_t most_bytes);

}  // namespace rekindle::functions
