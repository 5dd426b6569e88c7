// Images that copies could not go on from, because what the store has of them is damaged. The store itself
// may learn of it only when it is looked through.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "dedup_store/block_io.h"

namespace rekindle::daemon {

// Thread-safe. Quick: it may be told by whoever must not wait. Times are of the monotonic clock.
class DamagedImages {
 public:
  // A disk that refuses to read proves nothing at first (another path to it, a file server that starts): the
  // image is damaged when it has refused so often, each time so much later than the time before.
  static constexpr uint32_t kRefusals = 3;
  static constexpr absl::Duration kBetweenRefusals = absl::Seconds(20);
  // Afterwards it is tried again: the disk may have come back, and one that is damaged is found again.
  static constexpr absl::Duration kForgottenAfter = absl::Minutes(10);

  // `why`, a DataLoss, was met by a copy of the image. Returns that where the image is damaged from now on;
  // Unavailable: another attempt may succeed.
  absl::Status Judge(const std::string& digest, const absl::Status& why, absl::Time now = SteadyNow())
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::erase_if(found_, [&](const auto& entry) { return now - entry.second.last > kForgottenAfter; });
    if (found_.size() >= kMost && !found_.contains(digest)) found_.erase(found_.begin());
    Found& found = found_[digest];
    if (!store::IsRefusedByDisk(why)) {
      found.refusals = kRefusals;
    } else if (found.refusals == 0 || (found.refusals < kRefusals && now - found.last >= kBetweenRefusals)) {
      ++found.refusals;
    } else if (found.refusals < kRefusals) {
      return absl::UnavailableError(why.message());
    }
    found.last = now;
    found.why = std::string(why.message());
    if (found.refusals >= kRefusals) return why;
    return absl::UnavailableError(why.message());
  }
  // Nothing: it is not known to be damaged.
  std::optional<std::string> Why(const std::string& digest, absl::Time now = SteadyNow()) const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto found = found_.find(digest);
    if (found == found_.end() || found->second.refusals < kRefusals ||
        now - found->second.last > kForgottenAfter) {
      return std::nullopt;
    }
    return found->second.why;
  }

 private:
  struct Found {
    uint32_t refusals = 0;  // kRefusals: it is damaged
    absl::Time last;        // that was counted
    std::string why;
  };
  // One that is forgotten is found again by the next copy of it.
  static constexpr size_t kMost = 1000;

  mutable absl::Mutex mutex_;
  std::map<std::string, Found> found_ ABSL_GUARDED_BY(mutex_);  // by digest
};

}  // namespace rekindle::daemon
