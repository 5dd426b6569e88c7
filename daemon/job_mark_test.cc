#include "daemon/job_mark.h"

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "daemon/job_registry.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

TEST(JobMarkTest, EachSubmissionHasItsOwnAndNoJobIsCalledSo) {
  const std::string mark = NewJobMark("train");
  EXPECT_TRUE(absl::StartsWith(mark, "train+"));
  EXPECT_NE(mark, NewJobMark("train"));
  EXPECT_TRUE(IsJobMark(mark));
  EXPECT_FALSE(CheckJobName(mark).ok());
  EXPECT_FALSE(IsJobMark("train"));
}

TEST(JobMarkTest, AnImageWithoutOneOrWithWhatIsNoneHasNone) {
  EXPECT_EQ(MarkOfImage({{v1::kJobMarkLabel, "train+1f"}}), "train+1f");
  EXPECT_EQ(MarkOfImage({}), "");
  for (const char* bad : {"", "train", "../+", "a/b+c", ".a+b"}) {
    EXPECT_EQ(MarkOfImage({{v1::kJobMarkLabel, bad}}), "") << bad;
  }
}

TEST(MarkUsesTest, WhatAnotherJobIsMadeOfIsNotEnded) {
  MarkUses uses;
  {
    const MarkUses::Use restored = uses.Restore("a+1", "other");
    EXPECT_FALSE(uses.End("a+1", "mine"));
    EXPECT_TRUE(uses.End("a+1", "other"));
    EXPECT_TRUE(uses.End("a+2", "mine"));
    MarkUses::Use unnamed = uses.Restore("a+2", "");
    EXPECT_FALSE(uses.End("a+2", "mine"));
    const MarkUses::Use moved = std::move(unnamed);
    EXPECT_FALSE(uses.End("a+2", "mine"));
  }
  EXPECT_TRUE(uses.End("a+1", "mine"));
  EXPECT_TRUE(uses.End("a+2", "mine"));
  EXPECT_FALSE(uses.Restore("", "other"));
}

TEST(MarkUsesTest, ARestoreWaitsForWhoEndsProcesses) {
  MarkUses uses;
  MarkUses::Use ends = uses.End("a+1", "mine");
  ASSERT_TRUE(ends);
  absl::Notification restores;
  std::thread other([&] {
    const MarkUses::Use restored = uses.Restore("a+1", "other");
    restores.Notify();
  });
  EXPECT_FALSE(restores.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  ends = MarkUses::Use();
  other.join();
  EXPECT_TRUE(restores.HasBeenNotified());
}

}  // namespace
}  // namespace rekindle::daemon
