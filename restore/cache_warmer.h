// Keeps a list of what the cache of a pager is used for (hot_list.h), and fills the cache of the next one
// from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "restore/frame_cache.h"
#include "restore/hot_list.h"

namespace rekindle::restore {

// Thread-safe.
class CacheWarmer {
 public:
  // `store`: its folder.
  CacheWarmer(std::string store, FrameCache& cache) : store_(std::move(store)), cache_(cache) {}

  using OpenImage =
      std::function<absl::StatusOr<std::shared_ptr<const store::ImageReader>>(const std::string& digest)>;
  // Once. Blocks; on a thread of low priority. Takes no more than a share of the cache. `go_on` is asked
  // before each frame, and may wait. What can't be read is left out.
  void Warm(const OpenImage& open, const std::function<bool()>& go_on);
  bool warming() const { return warming_.load(); }

  // Writes the list if the cache was used since the last time. `images`: digests, the last used first.
  void Save(const std::vector<std::string>& images) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string store_;
  FrameCache& cache_;
  std::atomic<bool> warming_{true};  // until Warm has ended
  absl::Mutex mutex_;
  HotList found_ ABSL_GUARDED_BY(mutex_);  // of the pager before
  uint64_t uses_saved_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rekindle::restore
