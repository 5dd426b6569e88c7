#include "functions/fair_turns.h"

namespace rekindle::functions {

FairTurns::Turn FairTurns::Take(Owner owner) {
  absl::MutexLock lock(&mutex_);
  Waiter waiter{owner};
  waiting_.push_back(&waiter);
  GiveTurns();
  mutex_.Await(absl::Condition(&waiter.has_turn));
  return Turn(this, owner);
}

void FairTurns::GiveBack(Owner owner) {
  absl::MutexLock lock(&mutex_);
  ++free_;
  --accounts_[owner].taken;
  GiveTurns();
}

void FairTurns::GiveTurns() {
  while (free_ > 0) {
    auto next = waiting_.end();
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      const Account& account = accounts_[(*it)->owner];
      if (account.taken >= share_) continue;
      if (next == waiting_.end() || account.last < accounts_[(*next)->owner].last) next = it;
    }
    if (next == waiting_.end()) return;
    Account& account = accounts_[(*next)->owner];
    --free_;
    ++account.taken;
    account.last = ++given_;
    (*next)->has_turn = true;
    waiting_.erase(next);
  }
}

}  // namespace rekindle::functions
