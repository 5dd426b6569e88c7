// Files that a job only appends to, and which were rotated after its image was taken.
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "restore/compatibility.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LogRollbackTest : public FileRollbackTest {
 protected:
  // The image has no content of it. Sized: CRIU gives it a length, as one of the descriptors does not append.
  void RecordLog(const std::string& name, bool sized = false) {
    Record(name, "0123456789");
    AddNeeded(name, sized);
  }
  void AddNeeded(const std::string& name, bool sized) {
    v1::NeededFile* needed = manifest_.add_files();
    needed->set_path(Path(name));
    needed->set_written(true);
    needed->set_has_size(sized);
    if (sized) needed->set_size(10);
  }
  void IsOutput(const std::string& name) {
    v1::StdioSlot* slot = manifest_.add_stdio();
    slot->set_fd(1);
    slot->set_kind("file");
    slot->set_path(Path(name));
  }
  FileAction PlanOne(const std::set<std::string>& replaced = {}) {
    auto plan = PlanRollback(manifest_, Image(), rollback_, rights_, SeenFrom::kMachine, replaced);
    EXPECT_TRUE(plan.ok() && plan->size() == 1) << plan.status();
    return plan.ok() ? std::move(plan->at(0)) : FileAction();
  }
  void Truncate(const std::string& name) { ASSERT_EQ(::truncate(Path(name).c_str(), 0), 0); }
  void ExpectLeft(const FileAction& action, bool blocks) {
    EXPECT_EQ(action.report.action(), Report::LEFT);
    EXPECT_EQ(action.blocks, blocks) << action.report.why();
    std::vector<std::string> warnings;
    EXPECT_EQ(CheckFiles(manifest_, std::nullopt, &warnings).ok(), !blocks) << "after that it is asked, too";
  }
};

TEST_F(LogRollbackTest, OneThatWasEmptiedIsLeft) {
  RecordLog("log");
  IsOutput("log");
  Truncate("log");
  const FileAction action = PlanOne();
  ExpectLeft(action, /*blocks=*/false);
  EXPECT_THAT(action.report.why(), AllOf(HasSubstr("it has become shorter (0 bytes, it had 10)"),
                                         Not(HasSubstr("--file-contents"))));
  EXPECT_EQ(ApplyOne().action(), Report::LEFT);
  EXPECT_EQ(Read("log"), "");
}

TEST_F(LogRollbackTest, OneThatWasMadeAnewIsLeft) {
  RecordLog("log");
  IsOutput("log");
  Replace("log", "new\n");
  const FileAction action = PlanOne();
  ExpectLeft(action, /*blocks=*/false);
  EXPECT_THAT(action.report.why(), HasSubstr("another file has its name"));
  rollback_.set_mode(v1::Rollback::ALL);
  ExpectLeft(PlanOne(), /*blocks=*/false);
  EXPECT_EQ(Read("log"), "new\n");
}

TEST_F(LogRollbackTest, ADescriptorThatDoesNotAppendNeedsItsLength) {
  RecordLog("log");
  IsOutput("log");
  AddNeeded("log", /*sized=*/true);
  Truncate("log");
  EXPECT_TRUE(PlanOne().blocks);
  Replace("log", "new\n");
  EXPECT_TRUE(PlanOne().blocks);
}

TEST_F(LogRollbackTest, AnImageThatSaysNothingOfItsDescriptorsIsRefused) {
  Record("log", "0123456789");
  IsOutput("log");
  Truncate("log");
  EXPECT_TRUE(PlanOne().blocks);
}

TEST_F(LogRollbackTest, ALogThatIsGoneBeginsAnew) {
  RecordLog("log");
  IsOutput("log");
  manifest_.mutable_written_files(0)->set_mode(0604);
  ASSERT_EQ(::unlink(Path("log").c_str()), 0);
  const FileAction action = PlanOne();
  EXPECT_EQ(action.report.action(), Report::MADE_AGAIN);
  EXPECT_EQ(action.report.size(), 0u);
  const Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::MADE_AGAIN);
  EXPECT_THAT(report.why(), HasSubstr("it begins anew"));
  EXPECT_EQ(Read("log"), "");
  EXPECT_EQ(Stat("log").st_mode & 07777, 0604u);
  ExpectLeft(PlanOne(), /*blocks=*/false);
}

// Another image may have what they lack.
TEST_F(LogRollbackTest, OthersThatAreShorterOrGoneAreMissed) {
  RecordLog("numbers");
  Truncate("numbers");
  EXPECT_TRUE(PlanOne().blocks);
  ASSERT_EQ(::unlink(Path("numbers").c_str()), 0);
  ExpectLeft(PlanOne(), /*blocks=*/true);
}

TEST_F(LogRollbackTest, ALogOfAFolderThatMayComeBackIsWaitedFor) {
  ASSERT_EQ(::mkdir(Path("logs").c_str(), 0755), 0);
  RecordLog("logs/log");
  IsOutput("logs/log");
  manifest_.mutable_written_files(0)->set_device(manifest_.written_files(0).device() + 1);
  std::filesystem::remove_all(Path("logs"));
  const FileAction action = PlanOne();
  ExpectLeft(action, /*blocks=*/true);
  EXPECT_THAT(action.report.why(), HasSubstr(kMakeFolder));
}

// The job gets the descriptor of another.
TEST_F(LogRollbackTest, OneInWhosePlaceALogIsGivenIsNotNeeded) {
  RecordLog("output", /*sized=*/true);
  const std::set<std::string> replaced = {Path("output")};
  const auto expect_left = [&] {
    EXPECT_TRUE(PlanOne().blocks);
    const FileAction action = PlanOne(replaced);
    EXPECT_EQ(action.report.action(), Report::LEFT);
    EXPECT_FALSE(action.blocks) << action.report.why();
    std::vector<std::string> warnings;
    EXPECT_FALSE(CheckFiles(manifest_, std::nullopt, &warnings).ok());
    EXPECT_TRUE(
        CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine, NeededFiles::kAll, replaced).ok());
  };
  Truncate("output");
  expect_left();
  Replace("output", "new\n");
  expect_left();
  ASSERT_EQ(::unlink(Path("output").c_str()), 0);
  expect_left();
}

class RotatedLogTest : public LogRollbackTest {
 protected:
  void SetUp() override {
    LogRollbackTest::SetUp();
    RecordLog("log");
    Write("log.1", "older\n");
    Write("log.2", "oldest\n");
  }
  // As Python's RotatingFileHandler does, with what is written next.
  void Rotate(int backups, const std::string& next) {
    for (int i = backups; i > 0; --i) Rename("log." + std::to_string(i), "log." + std::to_string(i + 1));
    Rename("log", "log.1");
    Write("log", next);
  }
  void Rename(const std::string& from, const std::string& to) {
    ASSERT_EQ(::rename(Path(from).c_str(), Path(to).c_str()), 0);
  }
  // By content, of all that was kept.
  std::set<std::string> Kept() const {
    std::set<std::string> kept;
    for (const auto& entry : std::filesystem::directory_iterator(files_)) {
      const std::string name = entry.path().filename();
      if (name.find(".rekindle-tail-") != std::string::npos) kept.insert(Read(name));
    }
    return kept;
  }
  void ExpectAsThen() {
    EXPECT_EQ(Read("log"), "0123456789");
    EXPECT_EQ(Read("log.1"), "older\n");
    EXPECT_EQ(Read("log.2"), "oldest\n");
    EXPECT_EQ(Read("log.3"), "(none)");
    EXPECT_EQ(Read("log.4"), "(none)");
  }
};

TEST_F(RotatedLogTest, AllHaveTheNamesThatTheyHad) {
  Append("log", " later\n");
  Rotate(2, "after that\n");
  Append("log", "and on\n");
  Rotate(3, "newest\n");
  const FileAction action = PlanOne();
  EXPECT_EQ(action.report.action(), Report::TRUNCATED);
  EXPECT_THAT(action.report.why(), HasSubstr("it is called log.2 by now"));
  const Report report = ApplyOne();
  EXPECT_THAT(report.why(), HasSubstr("it was called log.2 since, and has its name back; what was written "));
  ExpectAsThen();
  EXPECT_EQ(Kept(), (std::set<std::string>{" later\n", "after that\nand on\n", "newest\n"}));
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED) << "once more";
  ExpectAsThen();
}

TEST_F(RotatedLogTest, OneToWhichNothingWasAddedBefore) {
  Rotate(2, "newest\n");
  ApplyOne();
  ExpectAsThen();
  EXPECT_EQ(Kept(), (std::set<std::string>{"newest\n"}));
}

TEST_F(RotatedLogTest, OneThatIsNotMadeAnewYet) {
  Rotate(2, "newest\n");
  ASSERT_EQ(::unlink(Path("log").c_str()), 0);
  ApplyOne();
  ExpectAsThen();
}

TEST_F(RotatedLogTest, OneThatGotItsDateForAName) {
  Append("log", " later\n");
  Rename("log", "log.2026-11-30");
  Write("log", "newest\n");
  ApplyOne();
  ExpectAsThen();
  EXPECT_EQ(Read("log.2026-11-30"), "(none)");
}

TEST_F(RotatedLogTest, OneThatIsNotWhatItWasIsLeft) {
  Rewrite("log", 9, "x");
  Rotate(2, "a newest that is longer than it\n");
  EXPECT_EQ(PlanOne().report.action(), Report::LEFT);
  EXPECT_EQ(Read("log"), "a newest that is longer than it\n");
}

TEST_F(RotatedLogTest, WithoutTheRightToRenameItIsLeft) {
  Rotate(2, "a newest that is longer than it\n");
  rights_ = [](const std::function<void()>& work) {
    const int before = ::setfsuid(65534);
    work();
    ::setfsuid(static_cast<uid_t>(before));
  };
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(PlanOne().report.action(), Report::LEFT);
}

}  // namespace
}  // namespace rekindle::restore
