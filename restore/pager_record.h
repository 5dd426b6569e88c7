// What the pager did for one copy, and when: counted always, and as a timeline where somebody wants one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/timeline.h"
#include "dedup_store/store.h"
#include "restore/frame_cache.h"

namespace rekindle::restore {

// Thread-safe.
class PagerRecord {
 public:
  static constexpr size_t kMostFaults = 2000;  // of which each is told: the answer has to fit into a packet

  // What had to be loaded because the cache did not have it.
  struct Loaded {
    std::atomic<uint64_t> frames{0}, bytes{0};
  };

  explicit PagerRecord(bool wanted) : wanted_(wanted) {}
  bool wanted() const { return wanted_; }

  // As of the cache, counting.
  static absl::StatusOr<FrameCache::Pin> GetOrLoad(FrameCache& cache, const store::ImageReader& image,
                                                   store::FrameId frame, Loaded* loaded);
  static absl::Status GetAll(FrameCache& cache, const store::ImageReader& image,
                             absl::Span<const store::FrameId> frames, const FrameCache::FrameReady& ready,
                             Loaded* loaded);

  // From `begin_ns` until now. Without effect where no timeline is wanted.
  void Add(absl::string_view thread, absl::string_view name, int64_t begin_ns,
           std::map<std::string, int64_t> numbers = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  struct Fault {
    int64_t begin_ns = 0;
    uint64_t address = 0;
    uint32_t pages = 0;   // that were put in; 0: a zero page
    bool loaded = false;  // they were not in the cache
  };
  void AddFault(const Fault& fault) ABSL_LOCKS_EXCLUDED(mutex_);
  // CRIU has finished: what follows happens while the job runs.
  void JobRuns() ABSL_LOCKS_EXCLUDED(mutex_);

  // The spans so far, and one ("serving") for the time since JobRuns with `numbers`. JSON.
  std::string Encode(std::map<std::string, int64_t> numbers) const ABSL_LOCKS_EXCLUDED(mutex_);
  // DataLoss: they are no spans.
  static absl::StatusOr<Timeline> Decode(absl::string_view json);

 private:
  const bool wanted_;
  mutable absl::Mutex mutex_;
  int64_t runs_since_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  Timeline spans_ ABSL_GUARDED_BY(mutex_);
  // Thread, begin, duration, address, pages, loaded.
  std::vector<std::array<int64_t, 6>> faults_ ABSL_GUARDED_BY(mutex_);
  uint64_t faults_left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::restore
