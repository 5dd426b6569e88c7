// Files that the job had not open, and those that it has written anew, under their old inode.
#include <fcntl.h>
#include <sys/stat.h>

#include "absl/strings/match.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class TrackedRollbackTest : public FileRollbackTest {
 protected:
  void Track(const std::string& pattern) { manifest_.add_track_paths(Path(pattern)); }
  // As CRIU needs a file that was not opened for appending.
  void Needs(const std::string& name) {
    v1::NeededFile* file = manifest_.add_files();
    file->set_path(Path(name));
    file->set_size(static_cast<uint64_t>(Stat(name).st_size));
    file->set_has_size(true);
    file->set_written(true);
  }
};

TEST_F(TrackedRollbackTest, WhatWasAppendedIsCutOff) {
  Record("events", std::string("\0one", 4), {.tracked = true});
  Append("events", std::string("\0two", 4));
  const Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::TRUNCATED) << report.why();
  EXPECT_EQ(report.discarded_bytes(), 4u);
  EXPECT_EQ(Read("events"), std::string("\0one", 4));
  // It is as it was, and not told once more.
  EXPECT_THAT(Apply(), SizeIs(0));
}

TEST_F(TrackedRollbackTest, AnEmptyOneIsEmptyAgain) {
  Record("events", "", {.tracked = true});
  Append("events", "one");
  EXPECT_EQ(ApplyOne().action(), Report::TRUNCATED);
  EXPECT_EQ(Read("events"), "");
}

TEST_F(TrackedRollbackTest, WhatElseHasBecomeOfItIsLeftAndToldAndNothingWaitsForIt) {
  for (const char* name : {"gone", "shorter", "replaced", "anew", "unknown"})
    Record(name, "first", {.tracked = true});
  manifest_.mutable_written_files(4)->clear_ending();
  ASSERT_EQ(::unlink(Path("gone").c_str()), 0);
  Write("shorter", "f");
  Replace("replaced", "first and more");
  Write("anew", "second and longer");
  Append("unknown", " and more");
  std::vector<FileAction> plan = Plan();
  ASSERT_THAT(plan, SizeIs(5));
  for (const FileAction& action : plan) {
    EXPECT_EQ(action.report.action(), Report::LEFT) << action.report.path();
    EXPECT_FALSE(action.blocks) << action.report.path();
    EXPECT_NE(action.report.why(), "") << action.report.path();
  }
  EXPECT_THAT(plan[3].report.why(), HasSubstr("written anew"));
  EXPECT_TRUE(CheckPlan(plan).ok());
  Apply();
  EXPECT_EQ(Read("anew"), "second and longer");
}

TEST_F(TrackedRollbackTest, ItIsIgnoredAsOthersAre) {
  Record("events", "one", {.tracked = true});
  Append("events", "two");
  rollback_.add_ignore_paths(Path("events"));
  EXPECT_EQ(ApplyOne().action(), Report::IGNORED);
  EXPECT_EQ(Read("events"), "onetwo");
}

TEST_F(TrackedRollbackTest, OnesThatWereMadeLaterAreTold) {
  Record("events.1", "one", {.tracked = true});
  Track("events.*");
  manifest_.set_captured_unix_ns(Stat("events.1").st_mtim.tv_sec * 1'000'000'000 + 999'999'999);
  Write("events.2", "two");
  Write("other", "x");
  timespec later[2] = {{0, UTIME_OMIT}, {Stat("events.1").st_mtim.tv_sec + 10, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("events.2").c_str(), later, 0), 0);
  if (BornUnixNanos(AT_FDCWD, Path("events.2"), 0) != 0)
    manifest_.set_captured_unix_ns(BornUnixNanos(AT_FDCWD, Path("events.2"), 0) - 1);
  const Report report = ApplyOne();
  EXPECT_TRUE(absl::EndsWith(report.path(), "/events.2")) << report.path();
  EXPECT_EQ(report.action(), Report::LEFT);
  EXPECT_THAT(report.why(), HasSubstr("made after the image"));
  rollback_.set_mode(v1::Rollback::NONE);
  EXPECT_THAT(Apply(), SizeIs(0));
}

// As torch.save() does it under one name: without content of the version that was being written, what the job
// appends would come behind another one.
TEST_F(TrackedRollbackTest, OneThatWasWrittenAnewAndIsLongerNowHoldsTheJobBack) {
  Record("last.pt", "second save");
  Needs("last.pt");
  Write("last.pt", "third save, all of it");
  const std::vector<FileAction> plan = Plan();
  ASSERT_THAT(plan, SizeIs(1));
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_TRUE(plan[0].blocks);
  const absl::Status status = CheckPlan(plan);
  EXPECT_THAT(status.message(), HasSubstr("written anew after the image"));
  EXPECT_THAT(status.message(), HasSubstr("--ignore-path"));
}

TEST_F(TrackedRollbackTest, WithItsContentItIsPutBack) {
  Record("last.pt", "second save", {.content = true});
  Needs("last.pt");
  Write("last.pt", "third save, all of it");
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_EQ(Read("last.pt"), "second save");
}

TEST_F(TrackedRollbackTest, ALogThatWasWrittenAnewIsLeftToTheJob) {
  Record("log", "first\n");
  v1::NeededFile* file = manifest_.add_files();
  file->set_path(Path("log"));
  file->set_written(true);
  Write("log", "another, and longer\n");
  const std::vector<FileAction> plan = Plan();
  ASSERT_THAT(plan, SizeIs(1));
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_FALSE(plan[0].blocks);
}

}  // namespace
}  // namespace rekindle::restore
