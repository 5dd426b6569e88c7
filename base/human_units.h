// Bytes and durations as people read and write them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

std::string FormatBytes(uint64_t bytes);    // "512 B", "4.0 KiB", "1.5 GiB"
std::string FormatSeconds(double seconds);  // "310 us", "12.3 ms", "4.25 s", "3 min 20 s"
absl::StatusOr<uint64_t> ParseBytes(
    absl::string_view text);  // "4096", "64K", "1.5GiB", "20M" (powers of 1024)

}  // namespace rekindle
