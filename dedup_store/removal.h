// Removing many images of a store.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"

namespace rekindle::store {

// So many that whoever asks for more has time to say that he has changed his mind.
inline constexpr size_t kRemovedAtOnce = 100;

// As Store::RemoveExactly of each, in one transaction: all or nothing, and as quick as one. Which of them
// were there; the others' references are those of other images by now, or of none. Thread-safe.
absl::StatusOr<std::vector<bool>> RemoveExactly(Store& store, absl::Span<const ImageInfo> images);

}  // namespace rekindle::store
