// The parts of Store that look after the store as a whole.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

absl::StatusOr<GcReport> CollectGarbage(const std::shared_ptr<StoreCore>& core, const GcOptions& options);
// The part of CollectGarbage that only writes down which frames no image reaches, as it may have done before.
absl::Status RecordDeadFrames(const std::shared_ptr<StoreCore>& core);
absl::StatusOr<FsckReport> CheckStore(const std::shared_ptr<StoreCore>& core, const FsckOptions& options);

}  // namespace rekindle::store
