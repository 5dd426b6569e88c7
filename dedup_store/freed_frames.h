// Frames that nobody reads again.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"

namespace rekindle::store {

// Those of `frames` that gc has found to be needed by no image and read by nobody, or has removed. Reads the
// catalog alone. Thread-safe.
absl::StatusOr<std::vector<FrameId>> FreedFrames(const Store& store, absl::Span<const FrameId> frames);

}  // namespace rekindle::store
