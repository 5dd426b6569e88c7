// Frames that outlive the image that brought them, and whom they count for.
//
// An image counts for what it brought for as long as it is there. What other images have of it stays on disk
// when it goes: then each such frame counts for the oldest image that needs it, or nobody's quota would hold.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
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
  absl::StatusOr<std::map<uid_t, uint64_t>> Measure(StoreCore& core,
                                                    const std::vector<ImageRecordPtr>& images,
                                                    const Coming* coming = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using PackIds = std::vector<uint64_t>;
  struct KnownImage {
    ImageRecordPtr record;
    bool read = false;  // its manifest
    PackIds packs;      // in which it has pages
  };
  // One that is not the home of an image.
  struct KnownPack {
    int64_t created_unix_ns = 0;
    std::vector<std::pair<uint32_t, uint32_t>> frames;  // first page and stored bytes
    // The images that have pages in it, ascending.
    std::vector<uint64_t> users;
    // Of so many of them, from the first on, it is known what of it counts for which: `taken` frames for one
    // of these, and so many bytes for each.
    size_t counted = 0;
    std::vector<bool> taken;
    std::map<uint64_t, uint64_t> bytes_of;

    // Stored bytes of the frames of this extent that nobody has yet.
    uint64_t Take(const Extent& extent, std::vector<bool>& taken_now) const;
    void Forget(uint64_t user);
    void Add(uint64_t user);
    void CountAnew();
  };

  // Brings images_ up to date; what is new there is not read yet.
  void FollowImages(const std::vector<ImageRecordPtr>& images) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadNewImages(StoreCore& core) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Brings packs_ up to date, of which it gives those whose images are gone.
  absl::StatusOr<std::vector<uint64_t>> FindOrphans(StoreCore& core, const Coming* coming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of these packs all users.
  absl::Status Count(StoreCore& core, const std::vector<uint64_t>& orphans)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const KnownImage& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const KnownImage* Find(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<KnownImage> images_ ABSL_GUARDED_BY(mutex_);  // by their ids
  absl::flat_hash_map<uint64_t, KnownPack> packs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::store
