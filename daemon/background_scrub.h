// Looks for silent damage in the daemon's store, in the background and for as long as the daemon lives.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dedup_store/scrub.h"

namespace rekindle::daemon {

// Thread-safe. Where it is is kept in the store (store::ReadScrubStatus).
class BackgroundScrub {
 public:
  using OpenStore = std::function<absl::StatusOr<std::shared_ptr<store::Store>>()>;
  // Each stored byte is read once in a `period`, as slowly as that allows. What is found is logged. `open` is
  // asked again when the store was away, which may be another one then.
  BackgroundScrub(OpenStore open, absl::Duration period);
  // Waits for the piece that is being read.
  ~BackgroundScrub();

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it ends.
  bool Rest(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);

  const OpenStore open_;
  const absl::Duration period_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// What an administrator reads of damage: where it is, whom it costs, why, and what to do. `images`:
// references of those that have something of it.
std::string DescribeDamage(absl::Span<const store::ScrubDamage> damage,
                           const absl::StatusOr<std::vector<std::string>>& images);

}  // namespace rekindle::daemon
