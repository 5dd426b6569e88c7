// What a group's coordinator does next. Pure: no clock, no input or output. Not thread-safe.
//
//   preparing --all prepared--> freezing --all frozen--> storing --all stored--> deciding --durable-->
//   committing
//       |                          |                        |                       |
//       +--------------------------+------ any trouble -----+----- not durable -----+--> aborting
//
// Presumed abort: only the decision to commit is ever kept. Once it may be durable nothing takes it back.
#pragma once

#include <cstddef>
#include <vector>

namespace rekindle::group {

class CoordinatorState {
 public:
  // What to tell all members, or do, now.
  enum class Order { kNothing, kFreeze, kGo, kDecide, kCommit, kAbort };
  enum class Outcome { kUndecided, kCommitted, kAborted };

  // At least one member; all of them are preparing.
  explicit CoordinatorState(size_t members) : members_(members, Phase::kPreparing) {}

  Order OnPrepared(size_t member) { return Advance(member, Phase::kPreparing, Phase::kPrepared); }
  Order OnFrozen(size_t member) { return Advance(member, Phase::kFreezing, Phase::kFrozen); }
  Order OnStored(size_t member) { return Advance(member, Phase::kStoring, Phase::kStored); }
  Order OnCommitted(size_t member);
  // Its stream has ended, or it has failed.
  Order OnEnded(size_t member);
  // The caller has gone, or it lasts too long.
  Order OnGiveUp();
  // kDecide was carried out. Not `durable`: it is certain that it is not.
  Order OnDecided(bool durable);

  Outcome outcome() const { return outcome_; }
  bool settled(size_t member) const { return members_[member] == Phase::kCommitted; }
  // Nothing more will come: every member has committed or its stream has ended.
  bool finished() const;

 private:
  enum class Phase {
    kPreparing,
    kPrepared,
    kFreezing,
    kFrozen,
    kStoring,
    kStored,
    kCommitting,
    kCommitted,
    kEnded,
  };
  // The member goes from `from` to `to`; when all have, that of the next step is returned.
  Order Advance(size_t member, Phase from, Phase to);
  Order Abort();
  bool undecided() const { return outcome_ == Outcome::kUndecided; }

  std::vector<Phase> members_;
  Outcome outcome_ = Outcome::kUndecided;
  bool deciding_ = false;
};

}  // namespace rekindle::group
