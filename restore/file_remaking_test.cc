// Roll-backs of files whose content the image has: gone, shorter, written anew, or another's by now.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FileRemakingTest : public FileRollbackTest {};

TEST_F(FileRemakingTest, WhatIsGoneIsMadeAgain) {
  const std::string content = store::MakePages(5, 3).substr(0, 5 * kPage - 9);
  Record("checkpoint.tmp", content, {.content = true, .is_new = true});
  Record("begun.tmp", "", {.is_new = true});
  Record("state", "0123456789", {.in_place = true, .content = true});
  for (const char* name : {"begun.tmp", "state"}) ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  ASSERT_EQ(::rename(Path("checkpoint.tmp").c_str(), Path("checkpoint").c_str()), 0);
  ASSERT_TRUE(CheckPlan(Plan()).ok()) << CheckPlan(Plan());
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::MADE_AGAIN) << report.path();
  EXPECT_TRUE(Read("checkpoint.tmp") == content);
  EXPECT_TRUE(Read("checkpoint") == content) << "the one that was complete stays";
  EXPECT_EQ(Read("begun.tmp"), "");
  EXPECT_EQ(Read("state"), "0123456789");
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::UNCHANGED) << report.path();
  EXPECT_THAT(ListDirectory(files_).value(),
              ElementsAre("begun.tmp", "checkpoint", "checkpoint.tmp", "state"));
}

TEST_F(FileRemakingTest, WhatHasBecomeShorterIsPutBack) {
  Record("cut", "0123456789", {.content = true});
  Record("state", "0123456789", {.in_place = true, .content = true});
  for (const char* name : {"cut", "state"}) ASSERT_EQ(::truncate(Path(name).c_str(), 4), 0);
  const ino_t inode = Stat("cut").st_ino;
  for (const Report& report : Apply()) {
    EXPECT_EQ(report.action(), Report::PUT_BACK) << report.path();
    EXPECT_EQ(report.size(), 10u);
    EXPECT_EQ(report.discarded_bytes(), 0u);
  }
  EXPECT_EQ(Read("cut") + Read("state"), "01234567890123456789");
  EXPECT_EQ(Stat("cut").st_ino, inode);
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("cut", "state")) << "nothing was lost that is kept";
}

// As a log that was copied and then emptied.
TEST_F(FileRemakingTest, WhatWasWrittenAnewIsPutBackAndALogIsKept) {
  for (const char* name : {"shorter", "same", "longer"}) {
    Record(name, "0123456789", {.content = true});
  }
  Record("binary", "0123456789", {.content = true});
  Write("shorter", "anew");
  Write("same", "anew again");
  Write("longer", "anew, and more");
  Write("binary", std::string("\0\1", 2));
  for (const char* name : {"shorter", "same", "longer", "binary"}) Touch(name);
  std::vector<Report> reports = Apply();
  ASSERT_THAT(reports, SizeIs(4));
  for (const Report& report : reports) {
    EXPECT_EQ(report.action(), Report::PUT_BACK) << report.path();
    EXPECT_EQ(ReadFile(report.path()).value_or("(none)"), "0123456789");
  }
  EXPECT_EQ(ReadFile(reports[0].tail_copy()).value_or("(none)"), "anew");
  EXPECT_EQ(ReadFile(reports[1].tail_copy()).value_or("(none)"), "anew again");
  EXPECT_EQ(ReadFile(reports[2].tail_copy()).value_or("(none)"), "anew, and more");
  EXPECT_EQ(reports[3].tail_copy(), "");
  EXPECT_EQ(reports[3].discarded_bytes(), 2u);
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::UNCHANGED) << report.path();
}

TEST_F(FileRemakingTest, WhatGrewIsOnlyCutOff) {
  Record("log", "one\n", {.content = true});
  Append("log", "two\n");
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::TRUNCATED);
  EXPECT_EQ(ReadFile(report.tail_copy()).value_or("(none)"), "two\n");
  Touch("log");
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED) << "by its content";
}

TEST_F(FileRemakingTest, ReplacedFilesThatTheJobCanNotGoOnWithAreMadeAgainAndKept) {
  const std::string binary("\0\1", 2), half = std::string("\0half of the next one, longer", 29);
  Record("shorter", "0123456789", {.content = true});
  Record("empty", "0123456789", {.content = true});
  Record("new.tmp", "0123456789", {.content = true, .is_new = true});
  Record("begun.tmp", "", {.is_new = true});
  // As an earlier roll-back has made it again, and the job has gone on with it.
  Record("log", "one\n", {.content = true});
  Replace("shorter", binary);
  Replace("empty", "");
  Replace("new.tmp", half);
  Replace("begun.tmp", half);
  Replace("log", "one\ntwo\n");
  ASSERT_TRUE(CheckPlan(Plan()).ok()) << CheckPlan(Plan());
  std::vector<Report> reports = Apply();
  ASSERT_THAT(reports, SizeIs(5));
  for (const Report& report : reports) EXPECT_EQ(report.action(), Report::MADE_AGAIN) << report.path();
  for (const char* name : {"shorter", "empty", "new.tmp"}) EXPECT_EQ(Read(name), "0123456789") << name;
  EXPECT_EQ(Read("begun.tmp"), "");
  EXPECT_EQ(Read("log"), "one\n");
  EXPECT_EQ(ReadFile(reports[0].tail_copy()).value_or("(none)"), binary);
  EXPECT_EQ(reports[1].tail_copy(), "") << "nothing is lost with it";
  EXPECT_EQ(ReadFile(reports[2].tail_copy()).value_or("(none)"), half);
  EXPECT_EQ(ReadFile(reports[3].tail_copy()).value_or("(none)"), half);
  EXPECT_EQ(ReadFile(reports[4].tail_copy()).value_or("(none)"), "one\ntwo\n");
  EXPECT_EQ(reports[4].discarded_bytes(), 8u);
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::UNCHANGED) << report.path();
}

TEST_F(FileRemakingTest, OtherReplacedFilesAreLeft) {
  Record("log", "one\n", {.content = true});
  Record("lock", "", {});
  Record("large.tmp", "0123456789", {.is_new = true});
  Replace("log", "of a rotation\n");
  Replace("lock", "of another process");
  Replace("large.tmp", "another that is longer");
  for (const Report& report : Apply()) {
    EXPECT_EQ(report.action(), Report::LEFT) << report.path();
    EXPECT_THAT(report.why(), HasSubstr("another file has its name"));
  }
  EXPECT_EQ(Read("log"), "of a rotation\n");
  std::vector<FileAction> plan = Plan();
  EXPECT_TRUE(CheckPlan(plan).ok());
  EXPECT_THAT(plan[0].report.why(), HasSubstr("--rollback all puts back"));
  EXPECT_THAT(plan[2].report.why(), HasSubstr("the image does not have its content"));

  rollback_.set_mode(v1::Rollback::ALL);
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::MADE_AGAIN);
  EXPECT_EQ(ReadFile(reports[0].tail_copy()).value_or("(none)"), "of a rotation\n")
      << "its content is there unasked: what it replaces is not lost";
}

// Inode numbers are used again.
TEST_F(FileRemakingTest, AFileThatWasBornLaterIsAnother) {
  Record("checkpoint.tmp", "0123456789", {.in_place = true, .content = true, .is_new = true});
  Record("log", "0123456789");
  if (manifest_.written_files(0).born_ns() == 0) GTEST_SKIP() << "the file system does not tell";
  Rewrite("checkpoint.tmp", 0, "the one after that");
  Append("log", "more");
  for (v1::WrittenFile& file : *manifest_.mutable_written_files()) file.set_born_ns(file.born_ns() - 1);
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::MADE_AGAIN);
  EXPECT_EQ(ReadFile(reports[0].tail_copy()).value_or("(none)"), "the one after that");
  EXPECT_EQ(reports[1].action(), Report::LEFT);
  EXPECT_EQ(Read("log"), "0123456789more");
  for (v1::WrittenFile& file : *manifest_.mutable_written_files()) file.set_born_ns(0);
  EXPECT_EQ(Apply()[1].action(), Report::TRUNCATED) << "where nothing is known of it";
}

TEST_F(FileRemakingTest, AFileStaysShorterUntilAllOfItIsThere) {
  const std::string content = store::MakePages(300, 4);
  Record("state", content, {.in_place = true, .content = true});
  ASSERT_EQ(::truncate(Path("state").c_str(), 100), 0);
  Image();  // before files may be no longer than that
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  (void)::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 200 * kPage;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  std::vector<FileAction> plan = Plan();
  const absl::Status interrupted = ApplyRollback(Image(), rights_, &plan);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(interrupted.ok());
  EXPECT_EQ(Stat("state").st_size, 200 * kPage);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK) << "else it would be left: it is rewritten in place";
  EXPECT_TRUE(Read("state") == content);
}

// As `last.pt.tmp` that becomes `last.pt`, of a size of which images have no content.
TEST_F(FileRemakingTest, OneThatHasItsFinalNameIsMadeAgainUnderTheOneBefore) {
  Record("last.pt.tmp", "0123456789");
  manifest_.mutable_written_files(0)->set_mode(0604);
  Append("last.pt.tmp", "and all the rest");
  ASSERT_EQ(::rename(Path("last.pt.tmp").c_str(), Path("last.pt").c_str()), 0);
  const Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::MADE_AGAIN);
  EXPECT_THAT(report.why(), HasSubstr("it is called last.pt by now"));
  EXPECT_EQ(Read("last.pt.tmp"), "0123456789");
  EXPECT_EQ(Stat("last.pt.tmp").st_mode & 07777, 0604u);
  EXPECT_EQ(Read("last.pt"), "0123456789and all the rest") << "it stays until the job gives its name again";
}

TEST_F(FileRemakingTest, AlsoWhereTheNextOneIsInTheMaking) {
  Record("last.pt.tmp", "0123456789");
  ASSERT_EQ(::rename(Path("last.pt.tmp").c_str(), Path("last.pt").c_str()), 0);
  Write("last.pt.tmp", "of the next one, longer than that");
  const Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::MADE_AGAIN);
  EXPECT_EQ(Read("last.pt.tmp"), "0123456789");
  EXPECT_EQ(ReadFile(report.tail_copy()).value_or(""), "of the next one, longer than that");
}

TEST_F(FileRemakingTest, WhatWasRewrittenUnderAnotherNameIsNotWhatItWas) {
  Record("last.pt.tmp", "0123456789");
  Rewrite("last.pt.tmp", 8, "XX");
  ASSERT_EQ(::rename(Path("last.pt.tmp").c_str(), Path("last.pt").c_str()), 0);
  const std::vector<FileAction> plan = Plan();
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_TRUE(plan[0].blocks);
}

TEST_F(FileRemakingTest, AnotherFileInTheFolderIsNotTheOneThatIsGone) {
  Record("last.pt.tmp", "0123456789");
  Write("other", "0123456789");
  ASSERT_EQ(::unlink(Path("last.pt.tmp").c_str()), 0);
  EXPECT_TRUE(Plan().at(0).blocks);
}

}  // namespace
}  // namespace rekindle::restore
