// What a store takes on disk, and how full its file system is.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "dedup_store/limits.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

struct StoreBytes {
  uint64_t pack_bytes = 0;      // what was stored
  uint64_t metadata_bytes = 0;  // all else
  uint64_t total() const { return pack_bytes + metadata_bytes; }
};

// By the id of a pack: lets a later measurement look at those alone that came since.
using MeasuredPacks = std::map<uint64_t, StoreBytes>;

// All that the catalog knows, and the notes. `known`, when given, is used and added to.
absl::StatusOr<StoreBytes> MeasureStore(StoreCore& core, Catalog::Txn& txn, MeasuredPacks* known = nullptr);

// Takes microseconds.
absl::StatusOr<FileSystemUse> MeasureFileSystem(const std::string& path);

}  // namespace rekindle::store
