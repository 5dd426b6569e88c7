// Looking at many images without a copy of each.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "dedup_store/store.h"

namespace rekindle::store {

// As Store::List, which copies each: last committed first, those of which `wanted` says yes, until `each`
// returns false. It must not keep a reference to what it gets. Thread-safe.
absl::Status VisitImages(const Store& store, const std::function<bool(const ImageInfo&)>& wanted,
                         const std::function<bool(const ImageInfo&)>& each);

}  // namespace rekindle::store
