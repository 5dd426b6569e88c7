// Frames that outlive the image that brought them, and whom they count for.
//
// An image counts for what it brought for as long as it is there. What other images have of it stays on disk
// when it goes: then each such frame counts for the oldest image that needs it, or nobody's quota would hold.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "dedup_store/catalog.h"
#include "dedup_store/manifest.h"

namespace rekindle::store {

class StoreCore;

// Thread-safe. Remembers what it found, so that later questions cost little more than what has changed.
class InheritedFrames {
 public:
  // An image that is about to be committed; its own packs were made at `created_unix_ns`.
  struct Coming {
    const Manifest* manifest = nullptr;
    uid_t owner = 0;
    int64_t created_unix_ns = 0;
  };

  // Stored bytes by owner, of these images of the store, which are in ascending order of their ids, and of
  // the coming one. Those whose manifests can't be read need nothing. Opens packs: not within a transaction
  // of the catalog, since gc begins one while it has a pack locked.
  absl::StatusOr<std::map<uid_t, uint64_t>> Measure(StoreCore& core, const std::vector<ImageRecord>& images,
                                                    const Coming* coming = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct KnownPack {
    int64_t created_unix_ns = 0;
    std::vector<std::pair<uint32_t, uint32_t>> frames;  // first page and stored bytes
    // The images that have pages in it, by the packs of their manifests, and what of it counts for which,
    // when that was looked for. (A catalog that is made again gives other ids.)
    std::vector<uint64_t> needed_by;
    std::map<uint64_t, uint64_t> bytes_of;
  };
  using PackIds = std::vector<uint64_t>;

  // Packs whose images are gone. Brings packs_ up to date.
  absl::StatusOr<std::vector<uint64_t>> FindOrphans(StoreCore& core, const std::vector<ImageRecord>& images,
                                                    const Coming* coming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Which packs an image has pages in.
  const PackIds& PacksOf(StoreCore& core, const ImageRecord& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<uint64_t, KnownPack> packs_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, PackIds> packs_of_ ABSL_GUARDED_BY(mutex_);  // by the pack of the image's manifest
};

}  // namespace rekindle::store
