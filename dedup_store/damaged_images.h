// Which images have something of what is known to be damaged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dedup_store/catalog.h"
#include "dedup_store/scrub.h"

namespace rekindle::store {

class StoreCore;

// Thread-safe; nobody waits for what another one reads. What an image needs never changes, so all manifests
// are read once, and those that need a damaged pack when damage is news.
class DamagedImages {
 public:
  // References, sorted. Images whose manifests can't be read for another reason have none of it.
  absl::StatusOr<std::vector<std::string>> Find(StoreCore& core, absl::Span<const ScrubDamage> damage)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Known {
    std::vector<uint64_t> packs;  // which it has pages in
    uint64_t asked = 0;           // of which damage `hit` tells
    bool hit = false;
  };

  absl::Mutex mutex_;
  // By the pack of its manifest, which no other image has had.
  std::map<uint64_t, Known> images_ ABSL_GUARDED_BY(mutex_);
  // Those that could not be read, and when, of the monotonic clock.
  std::map<uint64_t, absl::Time> unread_ ABSL_GUARDED_BY(mutex_);
  std::string damage_ ABSL_GUARDED_BY(mutex_);  // the one asked about last, and its number
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::store
