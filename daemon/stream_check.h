// An image as it was sent, read to its end and held against its SHA-256, for who has no store to take it
// into.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rekindle::daemon {

struct CheckedStream {
  std::string origin;
  std::string base;  // the origin of the image that it builds upon; empty: it is whole
};

// `source` fills the beginning of what it is given and says how much, 0 at the end; its errors are passed on.
// DataLoss: it is not what was sent. InvalidArgument: it is no image.
// FailedPrecondition: it is of another version.
absl::StatusOr<CheckedStream> CheckImageStream(
    std::function<absl::StatusOr<size_t>(absl::Span<std::byte>)> source);

}  // namespace rekindle::daemon
