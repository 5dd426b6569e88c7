// What is told of a job's progress.
#include <gtest/gtest.h>

#include <limits>

#include "daemon/proto_conversion.h"

namespace rekindle::daemon {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kAskedAt = 1'800'000'000 * kNsPerSecond;

v1::JobProgress Told(double rate, int64_t seconds_ago) {
  rekindle_job_file_job said = {};
  said.step = 7;
  said.total = 9;
  said.unix_ns = kAskedAt - seconds_ago * kNsPerSecond;
  said.boundaries = 3;
  said.steps_per_second = rate;
  v1::JobProgress progress;
  ToProto(said, kAskedAt, &progress);
  return progress;
}

TEST(Progress, IsTold) {
  const v1::JobProgress progress = Told(2.5, 1);
  EXPECT_EQ(progress.step(), 7u);
  EXPECT_EQ(progress.total(), 9u);
  EXPECT_EQ(progress.unix_ns(), kAskedAt - kNsPerSecond);
  EXPECT_EQ(progress.boundaries(), 3u);
  EXPECT_EQ(progress.steps_per_second(), 2.5);
}

TEST(Progress, ASilentJobHasNoRate) {
  EXPECT_EQ(Told(2.5, 10).steps_per_second(), 2.5);
  EXPECT_EQ(Told(2.5, 11).steps_per_second(), 0);
  // One with long steps is not silent between two of them.
  EXPECT_EQ(Told(0.01, 499).steps_per_second(), 0.01);
  EXPECT_EQ(Told(0.01, 501).steps_per_second(), 0);
}

TEST(Progress, WhatIsNoRateIsNotTold) {
  for (double rate :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(Told(rate, 1).steps_per_second(), 0) << rate;
  }
}

}  // namespace
}  // namespace rekindle::daemon
