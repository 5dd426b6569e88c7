#include "group/member_state.h"

#include <gtest/gtest.h>

namespace rekindle::group {
namespace {

using Verdict = MemberState::Verdict;
using Fate = MemberState::Fate;

TEST(MemberState, WaitsAtEachStep) {
  MemberState state;
  EXPECT_EQ(state.MayFreeze(), Verdict::kWait);
  state.OnFreeze();
  EXPECT_EQ(state.MayFreeze(), Verdict::kGoOn);
  EXPECT_EQ(state.MayGoOn(), Verdict::kWait);
  state.OnGo();
  EXPECT_EQ(state.MayGoOn(), Verdict::kGoOn);
  EXPECT_EQ(state.MayStore(), Verdict::kGoOn);
  state.OnStored();
  EXPECT_EQ(state.fate(), Fate::kWait);
  state.OnCommit();
  EXPECT_EQ(state.fate(), Fate::kPublish);
}

TEST(MemberState, GivesUpBeforeItHasStored) {
  for (int steps = 0; steps < 3; ++steps) {
    for (int trouble = 0; trouble < 3; ++trouble) {
      MemberState state;
      if (steps > 0) state.OnFreeze();
      if (steps > 1) state.OnGo();
      if (trouble == 0) state.OnAbort();
      if (trouble == 1) state.OnBroken();
      if (trouble == 2) state.OnLimit();
      EXPECT_EQ(state.MayFreeze(), Verdict::kGiveUp);
      EXPECT_EQ(state.MayGoOn(), Verdict::kGiveUp);
      EXPECT_EQ(state.MayStore(), Verdict::kGiveUp);
      EXPECT_TRUE(state.gives_up());
    }
  }
}

MemberState StoredMember() {
  MemberState state;
  state.OnFreeze();
  state.OnGo();
  state.OnStored();
  return state;
}

TEST(MemberState, IsInDoubtOnceItHasStored) {
  MemberState broken = StoredMember();
  broken.OnBroken();
  EXPECT_EQ(broken.fate(), Fate::kInDoubt);
  MemberState late = StoredMember();
  late.OnLimit();
  EXPECT_EQ(late.fate(), Fate::kWait);
  MemberState aborted = StoredMember();
  aborted.OnAbort();
  aborted.OnBroken();
  EXPECT_EQ(aborted.fate(), Fate::kRemove);
  MemberState committed = StoredMember();
  committed.OnCommit();
  committed.OnBroken();
  EXPECT_EQ(committed.fate(), Fate::kPublish);
}

TEST(MemberState, TroubleWhileItBecomesDurableLeavesItInDoubt) {
  MemberState state;
  state.OnFreeze();
  state.OnGo();
  state.OnBroken();
  state.OnStored();
  EXPECT_EQ(state.fate(), Fate::kInDoubt);
}

TEST(MemberState, ImagesOfASupervisedJobAreNotKeptAwayForLong) {
  EXPECT_EQ(PrepareLimit(absl::ZeroDuration()), absl::Hours(1));
  EXPECT_EQ(PrepareLimit(absl::Seconds(30)), absl::Minutes(10));
  EXPECT_EQ(PrepareLimit(absl::Minutes(12)), absl::Minutes(24));
  EXPECT_EQ(PrepareLimit(absl::Hours(6)), absl::Hours(1));
}

TEST(MemberState, TheFirstDecisionHolds) {
  MemberState state = StoredMember();
  state.OnCommit();
  state.OnAbort();
  EXPECT_EQ(state.fate(), Fate::kPublish);
  MemberState other = StoredMember();
  other.OnAbort();
  other.OnCommit();
  EXPECT_EQ(other.fate(), Fate::kRemove);
}

TEST(MemberState, GivesUpWhenItIsToldOutOfTurn) {
  MemberState early;
  early.OnCommit();
  EXPECT_EQ(early.MayFreeze(), Verdict::kGiveUp);
  MemberState skipped;
  skipped.OnGo();
  EXPECT_EQ(skipped.MayFreeze(), Verdict::kGiveUp);
}

}  // namespace
}  // namespace rekindle::group
