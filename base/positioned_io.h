// Reading and writing whole spans at a place in a file. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rekindle {

// Fills `out` with what lies at `offset`; behind the file's end are zeros.
absl::Status ReadAtOrZero(int fd, uint64_t offset, absl::Span<std::byte> out);

// The same of a file that must not end before: OutOfRange.
absl::Status ReadAt(int fd, uint64_t offset, absl::Span<std::byte> out);

absl::Status WriteAt(int fd, uint64_t offset, absl::Span<const std::byte> bytes);

// Writes what lies from `begin` to `end` to where `to` is, a pipe maybe. Returns how far it came: the file
// may have become shorter meanwhile. `to_what`: for errors.
absl::StatusOr<uint64_t> CopyPart(int from, uint64_t begin, uint64_t end, int to, absl::string_view to_what);

}  // namespace rekindle
