// How much of something each of many has, of which none may have more than a share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
    return TakeNow(whose, amount, most);
  }
  // The same; where there is too little left now, `given_back` is called once when there is more: on any
  // thread, and it must not wait. When `waiter` has gone it need not be called any more.
  std::shared_ptr<void> TakeOrAwait(const std::string& whose, size_t amount, size_t most,
                                    std::weak_ptr<void> waiter, std::function<void()> given_back)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<void> room = TakeNow(whose, amount, most);
    if (room || amount > most) return room;
    Waiting& waiting = waiting_[whose];
    // Others may come, wait and go again and again until some is given back.
    if (waiting.all.size() >= waiting.look_at) {
      std::erase_if(waiting.all, [](const Waiter& one) { return one.who.expired(); });
      waiting.look_at = std::max(kFewWaiters, 2 * waiting.all.size());
    }
    waiting.all.push_back({std::move(waiter), std::move(given_back)});
    return nullptr;
  }

 private:
  static constexpr size_t kFewWaiters = 64;
  struct Waiter {
    std::weak_ptr<void> who;
    std::function<void()> given_back;
  };
  struct Waiting {
    std::vector<Waiter> all;
    size_t look_at = kFewWaiters;  // for those that have gone, when there are so many
  };

  std::shared_ptr<void> TakeNow(const std::string& whose, size_t amount, size_t most)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto found = taken_.find(whose);
    const size_t taken = found == taken_.end() ? 0 : found->second;
    if (amount > most || taken > most - amount) return nullptr;
    taken_[whose] = taken + amount;
    return std::shared_ptr<void>(
        this, [shares = shared_from_this(), whose, amount](void*) { shares->GiveBack(whose, amount); });
  }
  void GiveBack(const std::string& whose, size_t amount) ABSL_LOCKS_EXCLUDED(mutex_) {
    Waiting waited;
    {
      absl::MutexLock lock(&mutex_);
      auto found = taken_.find(whose);
      if (found != taken_.end() && (found->second -= amount) == 0) taken_.erase(found);
      if (auto waits = waiting_.extract(whose)) waited = std::move(waits.mapped());
    }
    for (const Waiter& waiter : waited.all) waiter.given_back();
  }

  absl::Mutex mutex_;
  std::map<std::string, size_t> taken_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
