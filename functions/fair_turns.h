// A few turns for work that many owners' threads do themselves, of which none can take them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::functions {

// Thread-safe. Outlives its turns.
class FairTurns {
 public:
  using Owner = uint64_t;

  // Given back when it goes. Thread-compatible.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)), owner_(other.owner_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (turns_ != nullptr) turns_->GiveBack(owner_);
    }

   private:
    friend class FairTurns;
    Turn(FairTurns* turns, Owner owner) : turns_(turns), owner_(owner) {}
    FairTurns* turns_;
    Owner owner_;
  };

  // `turns` at once, of which one owner has at most `share`.
  FairTurns(int turns, int share) : share_(share), free_(turns) {}
  FairTurns(const FairTurns&) = delete;
  FairTurns& operator=(const FairTurns&) = delete;

  // Waits for one. Of those whose owner may have one more, the owner goes first who had his last one the
  // longest ago; with each owner, who asked first.
  Turn Take(Owner owner) {
    return *TakeUnless(owner, [] { return false; });
  }
  // Nothing: `given_up`, which is asked now and then, says that the turn is not wanted any more.
  std::optional<Turn> TakeUnless(Owner owner, const std::function<bool()>& given_up)
      ABSL_LOCKS_EXCLUDED(mutex_);
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return waiting_.size();
  }

 private:
  struct Waiter {
    Owner owner = 0;
    bool has_turn = false;
  };
  struct Account {
    int taken = 0;
    uint64_t last = 0;  // number of the last turn; 0: none yet
  };

  void GiveBack(Owner owner) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveTurns() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int share_;
  mutable absl::Mutex mutex_;
  int free_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Waiter*> waiting_ ABSL_GUARDED_BY(mutex_);  // in the order in which they came
  std::map<Owner, Account> accounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
