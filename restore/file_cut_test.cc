// Between the plan of a roll-back and the moment in which files are cut off there is a whole restore, in
// which others may write to them.
#include "restore/file_cut.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "absl/cleanup/cleanup.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FileCutTest : public FileRollbackTest {
 protected:
  // Up to where the job's processes stand and have not run.
  std::vector<FileAction> PutBack() {
    std::vector<FileAction> plan = Plan();
    const absl::Status status = PutFilesBack(Image(), rights_, &plan);
    EXPECT_TRUE(status.ok()) << status;
    return plan;
  }
  std::string TailOf(const FileAction& action) const {
    return Read(action.report.tail_copy().substr(files_.size() + 1));
  }
  void Truncate(const std::string& name, off_t size) { ASSERT_EQ(::truncate(Path(name).c_str(), size), 0); }
  // A log of the job, to which all append.
  void RecordLog(const std::string& name, const std::string& content) {
    Record(name, content);
    manifest_.set_log(Path(name));
    manifest_.add_files()->set_path(Path(name));
  }
};

TEST_F(FileCutTest, WhatComesAfterThePlanIsKeptToo) {
  Record("log", "one\n");
  Append("log", "two\n");
  std::vector<FileAction> plan = PutBack();
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  EXPECT_EQ(TailOf(plan[0]), "two\n");
  Append("log", "three\n");
  ASSERT_TRUE(CatchUpWithFiles(rights_, &plan).ok());
  EXPECT_EQ(TailOf(plan[0]), "two\nthree\n");
  EXPECT_EQ(Read("log"), "one\ntwo\nthree\n");
  Append("log", "four\n");
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(TailOf(plan[0]), "two\nthree\nfour\n");
  EXPECT_EQ(Read("log"), "one\n");
  EXPECT_EQ(plan[0].report.discarded_bytes(), 15u);
  EXPECT_THAT(ListDirectory(files_).value(), SizeIs(2));
  // The job writes.
  Append("log", "2\n");
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(Read("log"), "one\n2\n");
}

TEST_F(FileCutTest, WhatHasBecomeShorterIsNotMadeLonger) {
  Record("data", "0123456789");
  Append("data", "more\n");
  std::vector<FileAction> plan = PutBack();
  Truncate("data", 3);
  for (const auto& step : {CatchUpWithFiles, CutFilesOff}) {
    const absl::Status status = step(rights_, &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("data") + ": it became shorter (3 bytes"));
  }
  EXPECT_EQ(Read("data"), "012");
  RemoveUselessTails(rights_, &plan);
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("data"));
}

// As logs do when they are rotated (copytruncate).
TEST_F(FileCutTest, ALogThatHasBecomeShorterIsLeft) {
  RecordLog("log", "0123456789");
  Append("log", "more\n");
  std::vector<FileAction> plan = PutBack();
  Truncate("log", 0);
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(Read("log"), "");
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_THAT(plan[0].report.why(), HasSubstr("it became shorter"));
}

TEST_F(FileCutTest, WhatIsWrittenAnewAfterThePlanIsNotCutOff) {
  Record("data", "0123456789");
  RecordLog("log", "0123456789");
  Record("other", "0123456789");
  for (const char* name : {"data", "log", "other"}) Append(name, "more\n");
  std::vector<FileAction> plan = PutBack();
  Write("data", "quite another version of it");
  Write("log", "quite another version of it");
  const absl::Status status = CutFilesOff(rights_, &plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("data") + ": it was written anew"));
  EXPECT_EQ(Read("data"), "quite another version of it");
  // Nor is any other.
  EXPECT_EQ(Read("other"), "0123456789more\n");
  plan.erase(plan.begin());
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(Read("log"), "quite another version of it");
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_EQ(Read("other"), "0123456789");
}

// Emptied down to where it is to end, and written to again: the copy has what was there.
TEST_F(FileCutTest, ATailThatBecameAnotherIsKeptBesideTheFirst) {
  Record("log", "0123456789\n");
  Append("log", "two\n");
  std::vector<FileAction> plan = PutBack();
  Truncate("log", 11);
  Append("log", "another\n");
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(Read("log"), "0123456789\n");
  EXPECT_EQ(TailOf(plan[0]), "another\n");
  EXPECT_THAT(ListDirectory(files_).value(), SizeIs(3));
}

TEST_F(FileCutTest, WithoutRoomForATailNothingHasChanged) {
  Record("data", "0123456789", {.in_place = true, .content = true});
  Record("log", "one\n");
  Append("log", std::string(8192, 'x') + "\n");
  Rewrite("data", 0, "abc");
  rollback_.set_mode(v1::Rollback::ALL);
  std::vector<FileAction> plan = Plan();
  // As a quota would, of which statfs() tells nothing.
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const absl::Cleanup back = [&] {
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
  };
  Image();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_FALSE(PutFilesBack(Image(), rights_, &plan).ok());
  EXPECT_EQ(Read("data"), "abc3456789");
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("data", "log"));
}

}  // namespace
}  // namespace rekindle::restore
