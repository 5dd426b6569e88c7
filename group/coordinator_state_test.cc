#include "group/coordinator_state.h"

#include <gtest/gtest.h>

namespace rekindle::group {
namespace {

using Order = CoordinatorState::Order;
using Outcome = CoordinatorState::Outcome;

// Everything up to the decision, for two members.
CoordinatorState Stored() {
  CoordinatorState state(2);
  EXPECT_EQ(state.OnPrepared(1), Order::kNothing);
  EXPECT_EQ(state.OnPrepared(0), Order::kFreeze);
  EXPECT_EQ(state.OnFrozen(0), Order::kNothing);
  EXPECT_EQ(state.OnFrozen(1), Order::kGo);
  EXPECT_EQ(state.OnStored(1), Order::kNothing);
  EXPECT_EQ(state.OnStored(0), Order::kDecide);
  return state;
}

TEST(CoordinatorState, EachStepWaitsForAll) {
  CoordinatorState state = Stored();
  EXPECT_EQ(state.outcome(), Outcome::kUndecided);
  EXPECT_EQ(state.OnDecided(true), Order::kCommit);
  EXPECT_EQ(state.outcome(), Outcome::kCommitted);
  EXPECT_EQ(state.OnCommitted(0), Order::kNothing);
  EXPECT_TRUE(state.settled(0));
  EXPECT_FALSE(state.finished());
  state.OnCommitted(1);
  EXPECT_TRUE(state.finished());
}

TEST(CoordinatorState, OneMemberIsEnough) {
  CoordinatorState state(1);
  EXPECT_EQ(state.OnPrepared(0), Order::kFreeze);
  EXPECT_EQ(state.OnFrozen(0), Order::kGo);
  EXPECT_EQ(state.OnStored(0), Order::kDecide);
}

TEST(CoordinatorState, TroubleBeforeTheDecisionAborts) {
  for (int steps = 0; steps < 6; ++steps) {
    for (bool ended : {false, true}) {
      CoordinatorState state(2);
      if (steps > 0) state.OnPrepared(0);
      if (steps > 1) state.OnPrepared(1);
      if (steps > 2) state.OnFrozen(0);
      if (steps > 3) state.OnFrozen(1);
      if (steps > 4) state.OnStored(0);
      EXPECT_EQ(ended ? state.OnEnded(1) : state.OnGiveUp(), Order::kAbort) << steps;
      EXPECT_EQ(state.outcome(), Outcome::kAborted);
      EXPECT_EQ(state.OnStored(1), Order::kNothing);
      EXPECT_EQ(state.OnGiveUp(), Order::kNothing);
      state.OnEnded(0);
      state.OnEnded(1);
      EXPECT_TRUE(state.finished());
    }
  }
}

TEST(CoordinatorState, WhatMayBeDurableIsNotTakenBack) {
  CoordinatorState state = Stored();
  EXPECT_EQ(state.OnGiveUp(), Order::kNothing);
  EXPECT_EQ(state.OnEnded(0), Order::kNothing);
  EXPECT_EQ(state.OnDecided(true), Order::kCommit);
  EXPECT_EQ(state.OnGiveUp(), Order::kNothing);
  state.OnCommitted(1);
  EXPECT_TRUE(state.finished());
  EXPECT_FALSE(state.settled(0));
  EXPECT_EQ(state.outcome(), Outcome::kCommitted);
}

TEST(CoordinatorState, ADecisionThatCanNotBeKeptIsNone) {
  CoordinatorState state = Stored();
  EXPECT_EQ(state.OnDecided(false), Order::kAbort);
  EXPECT_EQ(state.outcome(), Outcome::kAborted);
}

TEST(CoordinatorState, AMemberThatSkipsAStepAborts) {
  CoordinatorState early(2);
  EXPECT_EQ(early.OnStored(0), Order::kAbort);
  CoordinatorState twice(2);
  twice.OnPrepared(0);
  EXPECT_EQ(twice.OnPrepared(0), Order::kAbort);
  CoordinatorState committed(2);
  EXPECT_EQ(committed.OnCommitted(1), Order::kAbort);
}

}  // namespace
}  // namespace rekindle::group
