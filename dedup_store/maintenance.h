// The parts of Store that look after the store as a whole.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

absl::StatusOr<GcReport> CollectGarbage(const std::shared_ptr<StoreCore>& core, const GcOptions& options);
// The part of CollectGarbage that only writes down which frames no image reaches, as it may have done before.
absl::Status RecordDeadFrames(const std::shared_ptr<StoreCore>& core);
// Of packs' frame tables about as many bytes are kept in memory as are given, or what one image needs; where
// a store has more, they are read again for each image.
inline constexpr uint64_t kFrameTableBytes = uint64_t{256} << 20;
absl::StatusOr<FsckReport> CheckStore(const std::shared_ptr<StoreCore>& core, const FsckOptions& options,
                                      uint64_t frame_table_bytes = kFrameTableBytes);

}  // namespace rekindle::store
