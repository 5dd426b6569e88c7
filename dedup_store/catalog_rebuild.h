// Makes a lost catalog again from what every pack says about itself and about the image it was written for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "dedup_store/block_io.h"
#include "dedup_store/format.h"

namespace rekindle::store {

// Packs that can't be used are left out, and with them the images whose manifest they hold; fsck then tells
// which of the others need them. Images that were removed come back where gc has not taken their manifests
// yet. What gc had found dead is found again by the next gc. FailedPrecondition: the packs are not there.
// False: nothing was done, because the catalog can
// be read (again): another process has made it, or had it in memory.
absl::StatusOr<bool> RebuildCatalog(const std::string& store_path, BlockIo* io, const StoreUuid& uuid);

}  // namespace rekindle::store
