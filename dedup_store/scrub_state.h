// What is known of a store's scrub, on disk and about its images.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/held_lock.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// What is damaged or was never written is an empty state: a pass begins anew then. FailedPrecondition: a
// newer version has written it, and it is to stay: it may tell of damage.
absl::StatusOr<ScrubState> ReadScrubState(const std::string& store_path);
// `durable`: it outlives a loss of power, too.
absl::Status WriteScrubState(const std::string& store_path, const ScrubState& state, bool durable);
// The lock of the one who scrubs, for as long as it is kept. Unavailable: somebody has it.
absl::StatusOr<HeldLock> LockScrub(const std::string& store_path);

// Takes out what is not there any more: the pack went, or the frame is dead, so that nobody reads it.
absl::Status DropDamageThatIsGone(const StoreCore& core, std::vector<ScrubDamage>& damage);
// Stored bytes of what a pass has still to read, near enough: as if all frames of a pack had the same size.
absl::StatusOr<uint64_t> ScrubBytesLeft(const StoreCore& core, const ScrubState& state);
absl::StatusOr<ScrubStatus> FindScrubStatus(StoreCore& core);
absl::StatusOr<std::vector<std::string>> FindKnownDamagedImages(StoreCore& core);
absl::StatusOr<std::unique_ptr<Scrub>> OpenScrub(const std::shared_ptr<StoreCore>& core);

}  // namespace rekindle::store
