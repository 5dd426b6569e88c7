#include "supervise/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <vector>

namespace rekindle::supervise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Action = RestartDecision::Action;
using Kind = Death::Kind;

Death Exited(int code, double lived = 0.4) {
  return {.kind = Kind::kExited, .code = code, .lived_seconds = lived};
}
Death Signalled(int code, double lived = 0.4) {
  return {.kind = Kind::kSignalled, .code = code, .lived_seconds = lived};
}
Death RestoreFailed() { return {.kind = Kind::kRestoreFailed}; }
Death AfterImage(Death death) {
  death.image_taken = true;
  return death;
}

TEST(RestartPolicy, ExitStatusZeroIsDone) {
  RestartPolicy policy({.restarts = 3});
  EXPECT_EQ(policy.OnDeath(Exited(0), 2).action, Action::kDone);
  EXPECT_EQ(policy.state().attempts, 0u);
}

TEST(RestartPolicy, AFirstDeathGoesOnFromTheNewestAtOnce) {
  for (const Death& death :
       {Exited(1), Signalled(SIGSEGV), Signalled(SIGKILL), Death{.kind = Kind::kOutOfMemory},
        Death{.kind = Kind::kHung}, Death{.kind = Kind::kUnknown}}) {
    RestartPolicy policy({.restarts = 1});
    const RestartDecision decision = policy.OnDeath(death, 3);
    EXPECT_EQ(decision.action, Action::kRestart) << Describe(death);
    EXPECT_EQ(decision.images_back, 0u);
    EXPECT_EQ(decision.wait_seconds, 0);
    EXPECT_THAT(decision.why, HasSubstr(Describe(death)));
  }
}

TEST(RestartPolicy, ARestartOfTheMachineCostsNoAttemptWhereAnImageWasTaken) {
  const Death machine = {.kind = Kind::kMachineRestarted, .progressed = true};
  RestartPolicy policy({.restarts = 1});
  for (int restart = 0; restart < 10; ++restart) {
    const RestartDecision decision = policy.OnDeath(AfterImage(machine), 3);
    ASSERT_EQ(decision.action, Action::kRestart) << decision.why;
    EXPECT_EQ(decision.images_back, 0u);
    EXPECT_EQ(decision.wait_seconds, 0);
  }
  EXPECT_EQ(policy.state().attempts, 0u);
  // It may be the job that ends its machine, each time before there is an image.
  EXPECT_EQ(policy.OnDeath(machine, 3).action, Action::kRestart);
  EXPECT_EQ(policy.OnDeath(machine, 3).action, Action::kGiveUp);
  EXPECT_EQ(RestartPolicy({.restarts = 0}).OnDeath(AfterImage(machine), 3).action, Action::kGiveUp);
}

TEST(RestartPolicy, WhatEndsWithTheDaemonsContainerCostsNoAttemptWhereAnImageWasTaken) {
  const Death left = {.kind = Kind::kDaemonLeft, .lived_seconds = 4};
  RestartPolicy policy({.restarts = 1});
  for (int restart = 0; restart < 10; ++restart) {
    const RestartDecision decision = policy.OnDeath(AfterImage(left), 3);
    ASSERT_EQ(decision.action, Action::kRestart) << decision.why;
    EXPECT_EQ(decision.why, "ended with the daemon's container, or while no daemon ran, after 4.0 s");
    EXPECT_EQ(decision.images_back, 0u);
    EXPECT_EQ(decision.wait_seconds, 0);
  }
  EXPECT_EQ(policy.state().attempts, 0u);
  // It may have crashed by itself, each time before there is an image.
  EXPECT_EQ(policy.OnDeath(left, 3).action, Action::kRestart);
  EXPECT_EQ(policy.OnDeath(left, 3).action, Action::kGiveUp);
  EXPECT_EQ(RestartPolicy({.restarts = 0}).OnDeath(AfterImage(left), 3).action, Action::kGiveUp);
}

TEST(RestartPolicy, WithoutRestartsItIsGivenUp) {
  RestartPolicy policy({.restarts = 0});
  const RestartDecision decision = policy.OnDeath(Exited(3), 1);
  EXPECT_EQ(decision.action, Action::kGiveUp);
  EXPECT_EQ(decision.why, "exit status 3 after 0.4 s; it is not to be restarted");
}

TEST(RestartPolicy, ACrashLoopGoesOneImageFurtherBackEachTime) {
  RestartPolicy policy({.restarts = 10});
  std::vector<size_t> back;
  for (int death = 0; death < 7; ++death) back.push_back(policy.OnDeath(Signalled(SIGSEGV), 3).images_back);
  // What it dies of may lie outside, and pass.
  EXPECT_THAT(back, testing::ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(RestartPolicy, ItGoesRoundUntilTheRestartsAreUsedUp) {
  RestartPolicy policy({.restarts = 10, .backoff_seconds = 1});
  std::vector<double> waits;
  RestartDecision decision = policy.OnDeath(Exited(1), 2);
  for (; decision.action == Action::kRestart; decision = policy.OnDeath(Exited(1), 2)) {
    ASSERT_LT(decision.images_back, 2u) << "it has an image of each";
    waits.push_back(decision.wait_seconds);
  }
  EXPECT_THAT(waits, testing::ElementsAre(0, 1, 2, 4, 8, 16, 32, 64, 128, 256));
  EXPECT_THAT(decision.why, HasSubstr("death 11 in a row without an image or progress; all 10 restarts"));
}

TEST(RestartPolicy, OneThatCannotBeRestoredIsPassedOverInEachRound) {
  RestartPolicy policy({.restarts = 10, .backoff_seconds = 1});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(1), 3).images_back, 1u);
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3).images_back, 2u);
  const RestartDecision round = policy.OnDeath(RestoreFailed(), 3);
  EXPECT_EQ(round.action, Action::kRestart);
  EXPECT_EQ(round.images_back, 0u);
  EXPECT_EQ(round.wait_seconds, 1) << "it may take a while until it passes";
  EXPECT_THAT(round.why, HasSubstr("from the newest once more"));
  EXPECT_EQ(policy.OnDeath(Exited(1), 3).images_back, 1u);
  // Now there is none that comes to life.
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3).images_back, 2u);
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3).images_back, 0u);
  for (size_t back = 1; back <= 3; ++back) EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3).images_back, back);
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3).action, Action::kGiveUp);
  EXPECT_EQ(policy.state().attempts, 3u);
}

TEST(RestartPolicy, SaysWhyItGoesFurtherBack) {
  RestartPolicy policy({.restarts = 10});
  EXPECT_EQ(policy.OnDeath(Exited(1), 2).why, "exit status 1 after 0.4 s");
  EXPECT_EQ(policy.OnDeath(Exited(1), 2).why,
            "exit status 1 again after 0.4 s, without an image or progress: one image further back");
  const RestartDecision anew = policy.OnDeath(Exited(1), 2);
  EXPECT_EQ(anew.why,
            "exit status 1 again after 0.4 s, without an image or progress: from the newest once more, since "
            "none that is older leads further");
  EXPECT_EQ(anew.death, "exit status 1 again after 0.4 s");
  RestartPolicy without({.restarts = 10});
  without.OnDeath(Exited(1), 0);
  EXPECT_EQ(without.OnDeath(Exited(1), 0).why, "exit status 1 again after 0.4 s");
}

TEST(RestartPolicy, AnotherWayOfDyingStaysAtTheSameImage) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(2), 3).images_back, 0u);
  EXPECT_EQ(policy.OnDeath(Signalled(SIGABRT), 3).images_back, 0u);
  EXPECT_EQ(policy.OnDeath(Signalled(SIGABRT), 3).images_back, 1u);
  EXPECT_EQ(policy.OnDeath(Exited(1), 3).images_back, 1u);
}

// Two lives have taken an image each, too late to be trusted, for which what lay between was removed.
TEST(RestartPolicy, FurtherBackIsCountedFromTheImageThatWasTried) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 6);
  EXPECT_EQ(policy.OnDeath(Exited(1), 6, Tried{0, 1}).images_back, 1u);
  EXPECT_EQ(policy.OnDeath(Exited(1), 6, Tried{1, 2}).images_back, 2u);
  EXPECT_EQ(policy.OnDeath(Exited(1), 5, Tried{1, 2}).images_back, 2u);
  EXPECT_EQ(policy.OnDeath(Exited(2), 5, Tried{3, 4}).images_back, 3u);
  EXPECT_EQ(policy.OnDeath(AfterImage(Exited(2)), 5, Tried{3, 4}).images_back, 0u);
}

TEST(RestartPolicy, WhileNoImageIsBlamedTheNewestIsTried) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(2), 4, Tried{1, 2}).images_back, 0u);
  // Now the one that the life went on from is, and what it took itself with it.
  EXPECT_EQ(policy.OnDeath(Exited(2), 5, Tried{1, 2}).images_back, 2u);
}

TEST(RestartPolicy, WhereTheTriedOneIsGoneItIsTheNextOlder) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(1), 2, Tried{0, 0}).images_back, 0u);
  EXPECT_EQ(policy.OnDeath(Exited(1), 3, Tried{1, 2}).images_back, 2u);
  EXPECT_EQ(policy.OnDeath(Exited(2), 2, Tried{1, 1}).images_back, 1u);
}

TEST(RestartPolicy, AfterALifeFromTheBeginningItsImageIsTried) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 0);
  const RestartDecision decision = policy.OnDeath(Exited(1), 1, Tried{0, 0});
  EXPECT_EQ(decision.images_back, 0u);
  EXPECT_THAT(decision.why, Not(HasSubstr("beginning")));
  EXPECT_EQ(policy.OnDeath(Exited(1), 2, Tried{0, 1}).images_back, 1u);
}

TEST(RestartPolicy, WhatCouldNotBeRestoredIsNotTriedAgainForAnImageThatCameMeanwhile) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Signalled(SIGKILL), 2);
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 3, Tried{1, 2}).images_back, 2u);
}

TEST(RestartPolicy, WhatWasDecidedCanBeCarriedOutLater) {
  RestartPolicy policy({.restarts = 10});
  policy.OnDeath(Exited(1), 3);
  policy.OnDeath(Exited(1), 3);
  const RestartState before = policy.state();
  RestartPolicy after({.restarts = 10}, before);
  EXPECT_EQ(after.Decided().images_back, 1u);
  EXPECT_EQ(after.Decided().action, Action::kRestart);
  EXPECT_EQ(after.state().attempts, before.attempts);
}

TEST(RestartPolicy, AnImageOfTheNewLifeStartsOver) {
  RestartPolicy policy({.restarts = 10, .backoff_seconds = 2});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(1), 3).images_back, 1u);
  const RestartDecision decision = policy.OnDeath(AfterImage(Exited(1)), 3);
  EXPECT_EQ(decision.images_back, 0u);
  EXPECT_EQ(decision.wait_seconds, 0);
}

TEST(RestartPolicy, ProgressKeepsTheImageThatLedToIt) {
  RestartPolicy policy({.restarts = 10, .backoff_seconds = 2});
  policy.OnDeath(Exited(1), 3);
  EXPECT_EQ(policy.OnDeath(Exited(1), 3).images_back, 1u);
  Death death = Exited(1);
  death.progressed = true;
  const RestartDecision decision = policy.OnDeath(death, 3);
  EXPECT_EQ(decision.images_back, 1u);
  EXPECT_EQ(decision.wait_seconds, 0);
}

TEST(RestartPolicy, WhoeverIsKilledFromOutsideLosesNoImageForIt) {
  for (const Death& death : {Signalled(SIGKILL), Signalled(SIGTERM), Death{.kind = Kind::kUnknown},
                             Exited(128 + SIGKILL), Exited(128 + SIGTERM)}) {
    EXPECT_TRUE(MayComeFromOutside(death));
    RestartPolicy policy({.restarts = 10});
    std::vector<size_t> back;
    for (int i = 0; i < 5; ++i) back.push_back(policy.OnDeath(death, 5).images_back);
    EXPECT_THAT(back, testing::ElementsAre(0, 0, 0, 1, 2)) << Describe(death);
  }
}

TEST(RestartPolicy, ALauncherWhoseChildWasKilledMayHaveItInItsImage) {
  EXPECT_TRUE(MayHoldItsBeginning(Exited(128 + SIGKILL)));
  EXPECT_TRUE(MayHoldItsBeginning(Exited(1)));
  EXPECT_TRUE(MayHoldItsBeginning(Signalled(SIGABRT)));
  EXPECT_FALSE(MayHoldItsBeginning(Signalled(SIGKILL)));
  RestartPolicy policy({.restarts = 10});
  Death death = Exited(128 + SIGKILL);
  EXPECT_EQ(policy.OnDeath(death, 3).images_back, 0u);
  death.image_suspect = true;
  EXPECT_EQ(policy.OnDeath(death, 3).images_back, 1u);
  death.image_suspect = false;
  EXPECT_EQ(policy.OnDeath(death, 3).images_back, 1u) << "the death is from outside";
}

TEST(RestartPolicy, KilledBetweenImagesForThirtyTimesItAlwaysGoesOnFromTheNewest) {
  RestartPolicy policy({.restarts = 30, .backoff_seconds = 1});
  for (int i = 0; i < 30; ++i) {
    const RestartDecision decision = policy.OnDeath(AfterImage(Signalled(SIGKILL, 20)), 3);
    ASSERT_EQ(decision.action, Action::kRestart);
    EXPECT_EQ(decision.images_back, 0u);
    EXPECT_EQ(decision.wait_seconds, 0);
  }
  EXPECT_EQ(policy.OnDeath(AfterImage(Signalled(SIGKILL)), 3).action, Action::kGiveUp);
}

TEST(RestartPolicy, AnImageThatCannotBeRestoredIsPassedOverAtOnce) {
  RestartPolicy policy({.restarts = 1, .backoff_seconds = 5});
  policy.OnDeath(Exited(1), 3);
  for (size_t back = 1; back <= 3; ++back) {
    const RestartDecision decision = policy.OnDeath(RestoreFailed(), 3);
    EXPECT_EQ(decision.action, Action::kRestart);
    EXPECT_EQ(decision.images_back, back);
    EXPECT_EQ(decision.wait_seconds, 0);
  }
  EXPECT_EQ(policy.state().attempts, 1u);
  const RestartDecision decision = policy.OnDeath(RestoreFailed(), 3);
  EXPECT_EQ(decision.action, Action::kGiveUp);
  EXPECT_THAT(decision.why, AllOf(HasSubstr("none of its images (3)"), HasSubstr("beginning")));
}

TEST(RestartPolicy, ARestoreThatFailedDoesNotHideTheCrashLoop) {
  RestartPolicy policy({.restarts = 5});
  policy.OnDeath(Exited(1), 4);
  EXPECT_EQ(policy.OnDeath(RestoreFailed(), 4).images_back, 1u);
  EXPECT_EQ(policy.OnDeath(Exited(1), 4).images_back, 2u);
}

TEST(RestartPolicy, WithoutImagesItStartsFromItsBeginning) {
  RestartPolicy policy({.restarts = 2});
  const RestartDecision decision = policy.OnDeath(Exited(1), 0);
  EXPECT_EQ(decision.action, Action::kRestart);
  EXPECT_EQ(decision.images_back, 0u);
  const RestartDecision failed = policy.OnDeath(RestoreFailed(), 0);
  EXPECT_EQ(failed.action, Action::kGiveUp);
  EXPECT_THAT(failed.why, HasSubstr("could not be started"));
}

TEST(RestartPolicy, BackOffDoublesUpToItsLimit) {
  RestartPolicy policy({.restarts = 100, .backoff_seconds = 1.5, .backoff_limit_seconds = 10});
  std::vector<double> waits;
  for (int i = 0; i < 7; ++i) waits.push_back(policy.OnDeath(Exited(1), 2).wait_seconds);
  EXPECT_THAT(waits, testing::ElementsAre(0, 1.5, 3, 6, 10, 10, 10));
  for (int i = 0; i < 90; ++i) EXPECT_EQ(policy.OnDeath(Exited(1), 2).wait_seconds, 10);
}

TEST(RestartPolicy, GivingUpSaysWhatHappened) {
  RestartPolicy policy({.restarts = 2});
  policy.OnDeath(Signalled(SIGSEGV), 1);
  policy.OnDeath(Signalled(SIGSEGV), 1);
  EXPECT_EQ(
      policy.OnDeath(Signalled(SIGSEGV), 1).why,
      "killed by signal 11 (Segmentation fault) again after 0.4 s, death 3 in a row without an image or "
      "progress; all 2 restarts are used up");
}

TEST(RestartPolicy, GoesOnFromItsState) {
  const RestartOptions options{.restarts = 6, .backoff_seconds = 1};
  RestartPolicy whole(options);
  RestartState kept;
  for (int i = 0; i < 8; ++i) {
    const Death death = i % 3 == 2 ? RestoreFailed() : Exited(1);
    RestartPolicy anew(options, kept);
    const RestartDecision a = whole.OnDeath(death, 4), b = anew.OnDeath(death, 4);
    kept = anew.state();
    EXPECT_EQ(a.action, b.action) << i;
    EXPECT_EQ(a.images_back, b.images_back) << i;
    EXPECT_EQ(a.wait_seconds, b.wait_seconds) << i;
    EXPECT_EQ(a.why, b.why) << i;
  }
}

// Whatever happens: never more attempts than allowed, never endless, never a worse image without a reason.
TEST(RestartPolicy, HoldsItsPromisesForAnySeriesOfDeaths) {
  std::mt19937 random(7);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 3000; ++round) {
    const RestartOptions options{.restarts = static_cast<uint32_t>(below(12)),
                                 .backoff_seconds = below(4) * 0.5,
                                 .backoff_limit_seconds = static_cast<double>(below(20))};
    RestartPolicy policy(options);
    size_t images = static_cast<size_t>(below(4));
    size_t last_back = 0;
    uint32_t attempts = 0;
    int failed_restores = 0;
    for (int step = 0;; ++step) {
      ASSERT_LT(step, 200) << "it never ends";
      Death death{.kind = static_cast<Kind>(below(6)), .lived_seconds = below(100) * 0.1};
      if (death.kind == Kind::kExited) death.code = 1 + below(2);
      if (death.kind == Kind::kSignalled) death.code = below(2) ? SIGKILL : SIGSEGV;
      if (death.kind != Kind::kRestoreFailed) {
        death.image_taken = below(4) == 0;
        death.progressed = below(4) == 0;
        if (death.image_taken && images < 5) ++images;
        failed_restores = 0;
      } else {
        ASSERT_LE(++failed_restores, 13) << "passing over images never ends";
      }
      const RestartDecision decision = policy.OnDeath(death, images);
      ASSERT_FALSE(decision.why.empty());
      if (decision.action == Action::kGiveUp) break;
      ASSERT_EQ(decision.action, Action::kRestart);
      if (death.kind != Kind::kRestoreFailed) ++attempts;
      ASSERT_LE(attempts, options.restarts);
      ASSERT_EQ(attempts, policy.state().attempts);
      ASSERT_LE(decision.images_back, images);
      ASSERT_LE(decision.images_back, last_back + 1);
      if (death.image_taken) {
        ASSERT_EQ(decision.images_back, 0u);
      } else {
        ASSERT_TRUE(decision.images_back >= std::min(last_back, images) || decision.images_back == 0);
      }
      ASSERT_GE(decision.wait_seconds, 0);
      ASSERT_LE(decision.wait_seconds, options.backoff_limit_seconds);
      last_back = decision.images_back;
    }
  }
}

TEST(Describe, NamesEveryKind) {
  EXPECT_EQ(Describe(Exited(7)), "exit status 7");
  EXPECT_EQ(Describe(Signalled(9)), "killed by signal 9 (Killed)");
  EXPECT_EQ(Describe(Signalled(200)), "killed by signal 200");
  EXPECT_EQ(Describe({.kind = Kind::kOutOfMemory}), "killed because memory ran out");
  EXPECT_EQ(Describe({.kind = Kind::kHung}), "killed because it made no progress");
  EXPECT_EQ(Describe(RestoreFailed()), "could not be restored");
  EXPECT_EQ(Describe({}), "ended while nobody watched");
  EXPECT_EQ(Describe({.kind = Kind::kMachineRestarted}), "ended with its machine, which was restarted");
  EXPECT_EQ(Describe({.kind = Kind::kDaemonLeft}),
            "ended with the daemon's container, or while no daemon ran");
}

}  // namespace
}  // namespace rekindle::supervise
