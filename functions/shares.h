// How much of something each of many has, of which none may have more than a share.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::functions {

// Thread-safe. Lives in a shared_ptr.
class Shares : public std::enable_shared_from_this<Shares> {
 public:
  // Given back when the last pointer to it goes. Null: this one would have more than `most`.
  std::shared_ptr<void> Take(const std::string& whose, size_t amount, size_t most)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto found = taken_.find(whose);
    const size_t taken = found == taken_.end() ? 0 : found->second;
    if (amount > most || taken > most - amount) return nullptr;
    taken_[whose] = taken + amount;
    return std::shared_ptr<void>(
        this, [shares = shared_from_this(), whose, amount](void*) { shares->GiveBack(whose, amount); });
  }

 private:
  void GiveBack(const std::string& whose, size_t amount) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto found = taken_.find(whose);
    if (found != taken_.end() && (found->second -= amount) == 0) taken_.erase(found);
  }

  absl::Mutex mutex_;
  std::map<std::string, size_t> taken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
