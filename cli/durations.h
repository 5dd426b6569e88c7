// Durations as they are written on the command line. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace rekindle::cli {

// How old something is: "90s", "30m", "36h", "7d", "2w", in nanoseconds.
absl::StatusOr<int64_t> ParseAge(const std::string& text);

// How long something may take: "250ms", "30s", "5m", "1h", or seconds ("30"), in milliseconds; at least 1.
// OutOfRange: it is written well, and 0 or too much.
absl::StatusOr<uint64_t> ParseMilliseconds(const std::string& text);

}  // namespace rekindle::cli
