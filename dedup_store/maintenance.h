// The parts of Store that look after the store as a whole.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

absl::StatusOr<GcReport> CollectGarbage(const std::shared_ptr<StoreCore>& core, const GcOptions& options);
absl::StatusOr<FsckReport> CheckStore(const std::shared_ptr<StoreCore>& core, const FsckOptions& options);

}  // namespace rekindle::store
