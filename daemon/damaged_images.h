// Images that copies could not go on from, because what the store has of them is damaged. The store itself
// may learn of it only when it is looked through.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// Thread-safe. Quick: it may be told by whoever must not wait.
class DamagedImages {
 public:
  // `why`: what was found, for people.
  void Add(const std::string& digest, const std::string& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (why_.size() >= kMost && !why_.contains(digest)) why_.erase(why_.begin());
    why_.emplace(digest, why);
  }
  // Nothing: it is not known to be damaged.
  std::optional<std::string> Why(const std::string& digest) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto found = why_.find(digest);
    if (found == why_.end()) return std::nullopt;
    return found->second;
  }

 private:
  // One that is forgotten is found again by the next copy of it.
  static constexpr size_t kMost = 1000;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::string> why_ ABSL_GUARDED_BY(mutex_);  // by digest
};

}  // namespace rekindle::daemon
