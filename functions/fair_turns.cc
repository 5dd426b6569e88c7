#include "functions/fair_turns.h"

#include "base/timed_await.h"

namespace rekindle::functions {

namespace {

constexpr absl::Duration kLookIfGivenUp = absl::Milliseconds(50);

}  // namespace

std::optional<FairTurns::Turn> FairTurns::TakeUnless(Owner owner, const std::function<bool()>& given_up) {
  absl::MutexLock lock(&mutex_);
  Waiter waiter{owner};
  waiting_.push_back(&waiter);
  GiveTurns();
  while (!AwaitUntil(mutex_, absl::Condition(&waiter.has_turn), Deadline(kLookIfGivenUp))) {
    if (!given_up()) continue;
    waiting_.remove(&waiter);
    return std::nullopt;
  }
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
