#include "supervise/checkpoint_interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace rekindle::supervise {
namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;

// The time that a job of `work` seconds takes, with an image of `cost` seconds every `interval` seconds of
// work, and failures at random with the mean distance `mtbf`: each loses what was done since the last image.
double SimulatedSeconds(double work, double interval, double cost, double mtbf, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> distance(1 / mtbf);
  double now = 0, done = 0, failure = distance(random);
  while (done < work) {
    const double piece = std::min(interval, work - done);
    if (now + piece + cost <= failure) {
      now += piece + cost;
      done += piece;
    } else {
      now = failure;
      failure = now + distance(random);
    }
  }
  return now;
}

// The same exactly, on average (Daly, equation 20, with a restart that takes no time), per second of work.
double ExpectedSeconds(double interval, double cost, double mtbf) {
  return mtbf * std::expm1((interval + cost) / mtbf) / interval;
}

TEST(OptimalInterval, WorkedNumbers) {
  // sqrt(2 * 300 * 86400) = 7200; 7200 * (1 + sqrt(300 / 172800) / 3 + 300 / 1555200) - 300.
  EXPECT_NEAR(OptimalIntervalSeconds(300, kDay), 7200 * (1 + 1.0 / 72 + 1.0 / 5184) - 300, 1e-9);
  EXPECT_NEAR(OptimalIntervalSeconds(300, kDay), 7001.3889, 1e-4);
  // sqrt(2 * 2 * 3600) = 120; 120 * (1 + 1 / 180 + 1 / 32400) - 2.
  EXPECT_NEAR(OptimalIntervalSeconds(2, kHour), 118.67037, 1e-5);
  // sqrt(2 * 0.5 * 40000) = 200; 200 * (1 + 0.0025 / 3 + 0.0025^2 / 9) - 0.5.
  EXPECT_NEAR(OptimalIntervalSeconds(0.5, 40000), 199.66681, 1e-5);
}

TEST(OptimalInterval, AtItsEnds) {
  EXPECT_EQ(OptimalIntervalSeconds(0, kHour), 0);
  EXPECT_EQ(OptimalIntervalSeconds(2 * kHour, kHour), kHour);
  EXPECT_EQ(OptimalIntervalSeconds(10 * kHour, kHour), kHour);
  // Just before the second form begins: M (2 + 2/3 + 2/9) - 2M = 8/9 M.
  EXPECT_NEAR(OptimalIntervalSeconds(1.999999 * kHour, kHour), kHour * 8 / 9, 1);
}

TEST(OptimalInterval, IsYoungsWhereImagesAreCheap) {
  for (double cost : {0.001, 0.01, 0.1}) {
    EXPECT_NEAR(OptimalIntervalSeconds(cost, kDay) / std::sqrt(2 * cost * kDay), 1, 0.001);
  }
}

TEST(OptimalInterval, NoOtherIsBetterByTheExactModel) {
  for (double mtbf : {600.0, kHour, kDay}) {
    for (double cost : {0.1, 1.0, 10.0, 60.0}) {
      double best = std::numeric_limits<double>::infinity();
      for (double interval = 1; interval < 2 * mtbf; interval *= 1.01) {
        best = std::min(best, ExpectedSeconds(interval, cost, mtbf));
      }
      const double chosen = ExpectedSeconds(OptimalIntervalSeconds(cost, mtbf), cost, mtbf);
      EXPECT_LE(chosen - 1, (best - 1) * 1.001) << cost << " " << mtbf;
    }
  }
}

TEST(OptimalInterval, NoOtherIsMuchBetterInASimulation) {
  constexpr double kCost = 5, kMtbf = 1800, kWork = 20000 * kMtbf;
  const double chosen = OptimalIntervalSeconds(kCost, kMtbf);
  const double lost = SimulatedSeconds(kWork, chosen, kCost, kMtbf, 1) - kWork;
  for (double interval = 10; interval < kMtbf; interval *= 1.2) {
    EXPECT_GE(SimulatedSeconds(kWork, interval, kCost, kMtbf, 1) - kWork, 0.97 * lost) << interval;
  }
  // And it matters: far from it, far more is lost.
  EXPECT_GT(SimulatedSeconds(kWork, chosen / 8, kCost, kMtbf, 1) - kWork, 2 * lost);
  EXPECT_GT(SimulatedSeconds(kWork, chosen * 8, kCost, kMtbf, 1) - kWork, 2 * lost);
}

TEST(CheckpointInterval, AFixedOneStays) {
  CheckpointInterval interval({.fixed_seconds = 30});
  EXPECT_EQ(interval.Seconds(), 30);
  interval.OnImage(100);
  interval.OnFailure();
  EXPECT_EQ(interval.Seconds(), 30);
}

TEST(CheckpointInterval, TheFirstImageComesSoon) {
  EXPECT_EQ(CheckpointInterval({.least_seconds = 7}).Seconds(), 7);
}

TEST(CheckpointInterval, BeforeAnyFailureTheAssumptionCounts) {
  CheckpointInterval interval({.overhead_budget = 0, .assumed_mtbf_seconds = 6 * kHour});
  EXPECT_EQ(interval.MtbfSeconds(), 6 * kHour);
  interval.OnImage(2);
  EXPECT_DOUBLE_EQ(interval.Seconds(), OptimalIntervalSeconds(2, 6 * kHour));
}

TEST(CheckpointInterval, MeasuredFailuresReplaceTheAssumption) {
  CheckpointInterval interval({.assumed_mtbf_seconds = 6 * kHour});
  for (int i = 0; i < 200; ++i) {
    interval.OnRun(600);
    interval.OnFailure();
  }
  EXPECT_NEAR(interval.MtbfSeconds(), 600, 0.2 * 600);
  // A long quiet time makes failures look rarer.
  const double before = interval.MtbfSeconds();
  interval.OnRun(7 * kDay);
  EXPECT_GT(interval.MtbfSeconds(), 2 * before);
}

TEST(CheckpointInterval, MoreFailuresNeverMakeItLonger) {
  CheckpointInterval interval({});
  interval.OnImage(0.2);
  double last = interval.Seconds();
  for (int i = 0; i < 50; ++i) {
    interval.OnFailure();
    EXPECT_LE(interval.Seconds(), last);
    last = interval.Seconds();
  }
}

TEST(CheckpointInterval, StaysWithinTheBudget) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-3, 3);
  for (int round = 0; round < 2000; ++round) {
    const IntervalOptions options{.overhead_budget = 0.01 * (1 + round % 5),
                                  .assumed_mtbf_seconds = std::pow(10, 3 + exponent(random))};
    CheckpointInterval interval(options);
    const double cost = std::pow(10, exponent(random));
    interval.OnImage(cost);
    ASSERT_LE(cost / interval.Seconds(), options.overhead_budget * (1 + 1e-9)) << cost;
    ASSERT_GE(interval.Seconds(), options.least_seconds);
    if (cost / options.overhead_budget <= options.most_seconds) {
      ASSERT_LE(interval.Seconds(), options.most_seconds);
    }
  }
}

TEST(CheckpointInterval, TheBoundsHold) {
  CheckpointInterval cheap({});
  cheap.OnImage(1e-9);
  EXPECT_EQ(cheap.Seconds(), 5);
  CheckpointInterval rare({.assumed_mtbf_seconds = 1e9});
  rare.OnImage(1);
  EXPECT_EQ(rare.Seconds(), 3600);
}

TEST(CheckpointInterval, TheCostFollowsAJobThatGrows) {
  CheckpointInterval interval({});
  interval.OnImage(1);
  EXPECT_DOUBLE_EQ(interval.state().cost_seconds, 1);
  interval.OnImage(3);
  EXPECT_DOUBLE_EQ(interval.state().cost_seconds, 2);
  for (int i = 0; i < 40; ++i) interval.OnImage(10);
  EXPECT_NEAR(interval.state().cost_seconds, 10, 0.1);
}

TEST(CheckpointInterval, GoesOnFromItsState) {
  CheckpointInterval first({});
  first.OnImage(2);
  first.OnRun(5000);
  first.OnFailure();
  const CheckpointInterval second({}, first.state());
  EXPECT_EQ(second.Seconds(), first.Seconds());
  EXPECT_EQ(second.MtbfSeconds(), first.MtbfSeconds());
}

// A job whose real failures are ten times as frequent as assumed: after some of them the interval costs
// little more than the one that somebody who knows would choose.
TEST(CheckpointInterval, LearnsWhatIsNearTheBest) {
  constexpr double kCost = 0.4, kMtbf = 2000;
  CheckpointInterval interval({.assumed_mtbf_seconds = 10 * kMtbf});
  std::mt19937_64 random(11);
  std::exponential_distribution<double> distance(1 / kMtbf);
  interval.OnImage(kCost);
  for (int i = 0; i < 100; ++i) {
    interval.OnRun(distance(random));
    interval.OnFailure();
  }
  const double best = ExpectedSeconds(OptimalIntervalSeconds(kCost, kMtbf), kCost, kMtbf);
  EXPECT_LE(ExpectedSeconds(interval.Seconds(), kCost, kMtbf) - 1, 1.05 * (best - 1));
}

}  // namespace
}  // namespace rekindle::supervise
