// Reading and writing whole spans at a place in a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace rekindle {

// Fills `out` with what lies at `offset`; behind the file's end are zeros.
absl::Status ReadAtOrZero(int fd, uint64_t offset, absl::Span<std::byte> out);

absl::Status WriteAt(int fd, uint64_t offset, absl::Span<const std::byte> bytes);

}  // namespace rekindle
