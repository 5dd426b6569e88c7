#include "group/coordinator_state.h"

#include <algorithm>

namespace rekindle::group {

CoordinatorState::Order CoordinatorState::Advance(size_t member, Phase from, Phase to) {
  if (!undecided()) return Order::kNothing;  // on its way while we aborted
  if (members_[member] != from) return Abort();
  members_[member] = to;
  if (!std::all_of(members_.begin(), members_.end(), [to](Phase phase) { return phase == to; })) {
    return Order::kNothing;
  }
  if (to == Phase::kStored) {
    deciding_ = true;
    return Order::kDecide;
  }
  const Phase next = to == Phase::kPrepared ? Phase::kFreezing : Phase::kStoring;
  std::fill(members_.begin(), members_.end(), next);
  return to == Phase::kPrepared ? Order::kFreeze : Order::kGo;
}

CoordinatorState::Order CoordinatorState::OnCommitted(size_t member) {
  if (undecided()) return Abort();
  if (members_[member] == Phase::kCommitting) members_[member] = Phase::kCommitted;
  return Order::kNothing;
}

CoordinatorState::Order CoordinatorState::OnEnded(size_t member) {
  // One that has stored and is then lost learns the decision later.
  const bool abort = undecided() && !deciding_;
  if (members_[member] != Phase::kCommitted) members_[member] = Phase::kEnded;
  return abort ? Abort() : Order::kNothing;
}

CoordinatorState::Order CoordinatorState::OnGiveUp() {
  return undecided() && !deciding_ ? Abort() : Order::kNothing;
}

CoordinatorState::Order CoordinatorState::OnDecided(bool durable) {
  deciding_ = false;
  if (!durable) return Abort();
  outcome_ = Outcome::kCommitted;
  for (Phase& phase : members_) {
    if (phase == Phase::kStored) phase = Phase::kCommitting;
  }
  return Order::kCommit;
}

CoordinatorState::Order CoordinatorState::Abort() {
  if (deciding_ || !undecided()) return Order::kNothing;
  outcome_ = Outcome::kAborted;
  return Order::kAbort;
}

bool CoordinatorState::finished() const {
  return !undecided() && std::all_of(members_.begin(), members_.end(), [](Phase phase) {
    return phase == Phase::kCommitted || phase == Phase::kEnded;
  });
}

}  // namespace rekindle::group
