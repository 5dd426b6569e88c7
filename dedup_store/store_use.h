// What a store takes on disk, and how full its file system is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "dedup_store/catalog.h"
#include "dedup_store/limits.h"

namespace rekindle::store {

class StoreCore;

struct StoreBytes {
  uint64_t pack_bytes = 0;      // what was stored
  uint64_t metadata_bytes = 0;  // all else
  uint64_t total() const { return pack_bytes + metadata_bytes; }
};

// Thread-safe. Remembers what does not change: what a pack takes while gc is not at work on it, and what the
// notes take while there are the same ones.
class StoreUse {
 public:
  // What single packs take, by their ids.
  using PackSizes = std::map<uint64_t, StoreBytes>;
  // What the catalog knows. Looks at the packs' files that neither it nor `sizes` knows yet, and tells that
  // of them. Reads nothing else: for transactions too.
  absl::StatusOr<StoreBytes> Measure(StoreCore& core, Catalog::Txn& txn, PackSizes* sizes = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What beside it is known of images.
  absl::StatusOr<uint64_t> MeasureNotes(StoreCore& core) ABSL_LOCKS_EXCLUDED(mutex_);
  // Both.
  absl::StatusOr<StoreBytes> MeasureAll(StoreCore& core, Catalog::Txn& txn) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct KnownPack {
    StoreBytes bytes;
    std::shared_ptr<const DeadRecord> dead;  // when it was looked at
  };
  absl::Mutex mutex_;
  std::map<uint64_t, KnownPack> packs_ ABSL_GUARDED_BY(mutex_);
  absl::Time notes_changed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // for `notes_bytes_`
  uint64_t notes_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Takes microseconds.
absl::StatusOr<FileSystemUse> MeasureFileSystem(const std::string& path);

}  // namespace rekindle::store
