#include "daemon/starting_jobs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"

namespace rekindle::daemon {
namespace {

TEST(StartingJobsTest, ANameIsOneJobsUntilItIsDropped) {
  StartingJobs starting;
  auto first = starting.TakeName("train");
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(starting.HasName("train"));
  EXPECT_TRUE(absl::IsAlreadyExists(starting.TakeName("train").status()));
  EXPECT_TRUE(starting.TakeName("other").ok());
  first->reset();
  EXPECT_FALSE(starting.HasName("train"));
  EXPECT_TRUE(starting.TakeName("train").ok());
}

TEST(StartingJobsTest, TheNameOfImagesIsOneJobsOfEachOwner) {
  StartingJobs starting;
  auto first = starting.TakeImagesName("train", 1000);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAlreadyExists(starting.TakeImagesName("train", 1000).status()));
  EXPECT_TRUE(starting.TakeImagesName("train", 1001).ok());
  EXPECT_TRUE(starting.TakeName("train").ok());
  first->reset();
  EXPECT_TRUE(starting.TakeImagesName("train", 1000).ok());
}

TEST(StartingJobsTest, ALogIsNotSharedWithASupervisedJobWhateverLeadsToIt) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-starting-").value();
  const std::string log = folder.path() + "/log", link = folder.path() + "/link";
  ASSERT_TRUE(WriteFileAtomically(log, "").ok());
  ASSERT_EQ(::symlink(log.c_str(), link.c_str()), 0);
  StartingJobs starting;
  auto first = starting.TakeLog(log, /*supervised=*/false);
  ASSERT_TRUE(first.ok());
  auto second = starting.TakeLog(link, /*supervised=*/false);
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(starting.TakeLog(link, /*supervised=*/true).status()));
  first->reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(starting.TakeLog(log, /*supervised=*/true).status()));
  second->reset();
  const auto supervised = starting.TakeLog(link, /*supervised=*/true);
  ASSERT_TRUE(supervised.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(starting.TakeLog(log, /*supervised=*/false).status()));
}

TEST(StartingJobsTest, WhatIsNeverCutIsEverybodys) {
  StartingJobs starting;
  const auto first = starting.TakeLog("/dev/null", /*supervised=*/true);
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(starting.TakeLog("/dev/null", /*supervised=*/true).ok());
  EXPECT_TRUE(starting.TakeLog("", /*supervised=*/true).ok());
}

}  // namespace
}  // namespace rekindle::daemon
