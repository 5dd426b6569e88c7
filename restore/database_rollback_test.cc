// Files that are one database of SQLite: what `append` does with them.
#include "restore/database_rollback.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/machine.h"
#include "base/test_child.h"
#include "base/test_user.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr Recorded kWithContent = {.in_place = true, .content = true};
constexpr Recorded kWithout = {.in_place = true};

class DatabaseRollbackTest : public FileRollbackTest {
 protected:
  void SetUp() override {
    FileRollbackTest::SetUp();
    files_ = std::filesystem::canonical(files_);  // as the kernel has it
  }
  static std::string Database(const std::string& more) { return std::string("SQLite format 3", 16) + more; }
  // As it is when the job has written on, and has copied its log into the database.
  void RecordAll(Recorded of_database, Recorded of_log) {
    Record("db", Database("old"), of_database);
    Record("db-shm", "index", of_log);
    manifest_.mutable_written_files(1)->set_modified_ns(0);
    Record("db-wal", "frames", of_log);
  }
  void WriteOn() {
    Append("db", " and new pages");
    Touch("db");
    WriteOnToLog();
  }
  void WriteOnToLog() {
    Rewrite("db-shm", 0, "INDEX");
    Append("db-wal", " and more");
    Touch("db-wal");
  }
  void ExpectLeftWhole(bool has_log) {
    WriteOn();
    const std::string now = All();
    for (const v1::Rollback::Mode mode : {v1::Rollback::APPEND, v1::Rollback::ALL}) {
      rollback_.set_mode(mode);
      std::vector<FileAction> plan = Plan();
      EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
      for (const FileAction& action : plan) {
        EXPECT_EQ(action.report.action(), Report::LEFT) << action.report.path();
        EXPECT_EQ(action.report.discarded_bytes(), 0u);
        EXPECT_THAT(action.report.why(), HasSubstr("the image does not have its content"));
      }
      const Report& other = plan[has_log ? 2 : 0].report;
      EXPECT_THAT(other.why(), HasSubstr("it belongs to the database " + Path("db")));
      EXPECT_EQ(other.size(), static_cast<uint64_t>(Stat(has_log ? "db-wal" : "db").st_size));
      ASSERT_TRUE(ApplyRollback(Image(), rights_, &plan).ok());
      EXPECT_EQ(All(), now);
    }
  }
  std::string All() const { return Read("db") + "|" + Read("db-shm") + "|" + Read("db-wal"); }
};

TEST_F(DatabaseRollbackTest, ComesBackAsAWhole) {
  RecordAll(kWithContent, kWithContent);
  const std::string then = All();
  WriteOn();
  EXPECT_THAT(Apply(), Each(Property(&Report::action, Report::PUT_BACK)));
  EXPECT_EQ(All(), then);
  EXPECT_THAT(Apply(), Each(Property(&Report::action, Report::UNCHANGED)));

  // Its last user has closed it.
  Append("db", "what was in the log");
  for (const char* name : {"db-shm", "db-wal"}) ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  Apply();
  EXPECT_EQ(All(), then);
}

TEST_F(DatabaseRollbackTest, ALogIsPutBackOnADatabaseThatHasNotChanged) {
  RecordAll(kWithout, kWithContent);
  const std::string then = All();
  WriteOnToLog();
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::UNCHANGED);
  EXPECT_EQ(All(), then);
}

TEST_F(DatabaseRollbackTest, ALogWithoutItsDatabaseIsLeft) {
  RecordAll(kWithout, kWithContent);
  ExpectLeftWhole(/*has_log=*/true);
}

TEST_F(DatabaseRollbackTest, ADatabaseWithoutItsLogIsLeft) {
  RecordAll(kWithContent, kWithout);
  ExpectLeftWhole(/*has_log=*/false);
}

// Made again, its log would lie over a database that has gone on without it.
TEST_F(DatabaseRollbackTest, ALogThatIsGoneIsNotMadeAgainAlone) {
  RecordAll(kWithout, kWithContent);
  WriteOn();
  for (const char* name : {"db-shm", "db-wal"}) ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  const absl::Status status = CheckPlan(Plan());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Path("db-wal")), HasSubstr("--file-contents"), HasSubstr("all of which")));
}

TEST_F(DatabaseRollbackTest, WhatIsIgnoredIsPartOfIt) {
  RecordAll(kWithContent, kWithContent);
  WriteOn();
  const std::string now = All();
  rollback_.add_ignore_paths(Path("db"));
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::IGNORED);
  EXPECT_THAT(reports[2].why(), HasSubstr("ignored"));
  EXPECT_EQ(All(), now);
}

TEST_F(DatabaseRollbackTest, IsLeftToThoseWhoUseIt) {
  RecordAll(kWithContent, kWithContent);
  WriteOn();
  const std::string now = All();
  UniqueFd file = OpenFile(Path("db-shm"), O_RDWR).value();
  TestChild other([&] {
    return ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0) != MAP_FAILED;
  });
  ASSERT_TRUE(other.prepared());
  EXPECT_THAT(Apply(), Each(Property(&Report::why, HasSubstr("process " + std::to_string(other.pid())))));
  EXPECT_EQ(All(), now);
}

// One that stands alone is between two transactions; its pages say how many there are.
TEST_F(DatabaseRollbackTest, ADatabaseWithoutALogIsNotCutOff) {
  Record("small", Database("old"), kWithContent);
  Record("large", Database("old"), kWithout);
  Record("other", "no database", kWithout);
  for (const char* name : {"small", "large", "other"}) {
    Append(name, " and more");
    Touch(name);
  }
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::LEFT);
  EXPECT_THAT(reports[0].why(), HasSubstr("--rollback all puts back its content"));
  EXPECT_EQ(reports[1].action(), Report::LEFT);
  EXPECT_EQ(reports[2].action(), Report::TRUNCATED);
  for (const char* name : {"small", "large"}) EXPECT_EQ(Read(name), Database("old and more"));
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(Apply()[0].action(), Report::PUT_BACK);
  EXPECT_EQ(Read("small"), Database("old"));
}

// As SQLite applies it when the database is opened.
class LaterLifeTest : public DatabaseRollbackTest {
 protected:
  static constexpr char kJournal[] = "a journal of later";

  void SetUp() override {
    DatabaseRollbackTest::SetUp();
    Record("db", Database("old"), kWithContent);
    rollback_.set_mode(v1::Rollback::ALL);
  }
  void LiveOn(const std::string& beside) {
    Append("db", " and new pages");
    Touch("db");
    Write(beside, kJournal);
  }
  void ExpectSetAside(const std::string& beside, Report::Action of_database) {
    std::vector<FileAction> plan = Plan();
    ASSERT_THAT(plan, SizeIs(2));
    EXPECT_EQ(plan[0].report.path(), Path(beside)) << "first";
    EXPECT_EQ(Read(beside), kJournal) << "a plan changes nothing";
    std::vector<Report> reports = Apply();
    ASSERT_THAT(reports, SizeIs(2));
    EXPECT_EQ(reports[0].action(), Report::SET_ASIDE) << reports[0].why();
    EXPECT_EQ(reports[0].size(), 0u);
    EXPECT_EQ(reports[0].discarded_bytes(), sizeof kJournal - 1);
    EXPECT_THAT(reports[0].tail_copy(), StartsWith(Path(beside + ".rekindle-tail-")));
    EXPECT_EQ(ReadFile(reports[0].tail_copy()).value_or("(none)"), kJournal);
    EXPECT_EQ(reports[1].action(), of_database);
    EXPECT_EQ(Read("db"), Database("old"));
    EXPECT_EQ(Read(beside), "(none)");
    EXPECT_THAT(Apply(), ElementsAre(Property(&Report::action, Report::UNCHANGED)));
  }
  void ExpectLeft(const std::string& beside, const std::string& why) {
    const std::string now = Read("db");
    for (const Report& report : Apply()) {
      EXPECT_THAT(report.action(), AnyOf(Report::LEFT, Report::IGNORED)) << report.path();
      if (report.path() == Path("db")) {
        EXPECT_THAT(report.why(), AllOf(HasSubstr(Path(beside)), HasSubstr(why)));
      }
    }
    EXPECT_EQ(Read("db"), now);
    struct stat info;
    EXPECT_EQ(::lstat(Path(beside).c_str(), &info), 0);
  }
};

TEST_F(LaterLifeTest, WhatItHasBesideTheDatabaseIsSetAside) {
  for (const char* beside : {"db-journal", "db-wal", "db-shm"}) {
    LiveOn(beside);
    ExpectSetAside(beside, Report::PUT_BACK);
  }
}

TEST_F(LaterLifeTest, AlsoWhereADatabaseBecameShorter) {
  rollback_.set_mode(v1::Rollback::APPEND);
  LiveOn("db-journal");
  ASSERT_EQ(::truncate(Path("db").c_str(), kDatabaseBeginning), 0);
  ExpectSetAside("db-journal", Report::PUT_BACK);
}

TEST_F(LaterLifeTest, AlsoWhereItWasWrittenAnewAsSomethingElse) {
  Write("db", "no database any more");
  Touch("db");
  Write("db-journal", kJournal);
  ExpectSetAside("db-journal", Report::PUT_BACK);
}

TEST_F(LaterLifeTest, AlsoWhereItIsGone) {
  ASSERT_EQ(::unlink(Path("db").c_str()), 0);
  Write("db-journal", kJournal);
  ExpectSetAside("db-journal", Report::MADE_AGAIN);
}

// Its rows are in its log alone.
TEST_F(LaterLifeTest, AlsoWhereTheDatabaseItselfHasNotChanged) {
  Write("db-wal", kJournal);
  ExpectSetAside("db-wal", Report::UNCHANGED);
}

TEST_F(LaterLifeTest, NotWhereTheDatabaseIsLeft) {
  rollback_.set_mode(v1::Rollback::APPEND);
  LiveOn("db-journal");
  EXPECT_EQ(ApplyOne().action(), Report::LEFT);
  EXPECT_EQ(Read("db-journal"), kJournal);
}

TEST_F(LaterLifeTest, OneOfATransactionThatHasEndedStays) {
  LiveOn("db-journal");
  for (const std::string& journal : {std::string(), std::string(512, '\0')}) {
    Write("db-journal", journal);
    Touch("db");
    Rewrite("db", 16, "NEW");
    EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
    EXPECT_EQ(Read("db-journal"), journal);
  }
}

TEST_F(LaterLifeTest, NamesOfEarlierOnesAreNotTaken) {
  std::set<std::string> names;
  for (int i = 0; i < 4; ++i) {
    LiveOn("db-journal");
    names.insert(Apply()[0].tail_copy());
  }
  EXPECT_THAT(names, SizeIs(4));
  for (const std::string& name : names) EXPECT_EQ(ReadFile(name).value_or("(none)"), kJournal) << name;
}

TEST_F(LaterLifeTest, WhatIsNoFileKeepsTheDatabaseAsItIs) {
  Write("victim", "something valuable");
  LiveOn("db-journal");
  ASSERT_EQ(::unlink(Path("db-journal").c_str()), 0);
  ASSERT_EQ(::symlink(Path("victim").c_str(), Path("db-journal").c_str()), 0);
  ExpectLeft("db-journal", "no regular file");
  ASSERT_EQ(::unlink(Path("db-journal").c_str()), 0);
  ASSERT_EQ(::mkdir(Path("db-journal").c_str(), 0755), 0);
  ExpectLeft("db-journal", "no regular file");
  EXPECT_EQ(Read("victim"), "something valuable");
}

TEST_F(LaterLifeTest, WhatIsIgnoredKeepsTheDatabaseAsItIs) {
  LiveOn("db-journal");
  rollback_.add_ignore_paths(Path("db-journal"));
  ExpectLeft("db-journal", "ignored");
}

// So a part of what the image should have is in there.
TEST_F(LaterLifeTest, ALogThatIsOlderThanTheImageKeepsTheDatabaseAsItIs) {
  LiveOn("db-wal");
  if (BornUnixNanos(AT_FDCWD, Path("db-wal"), 0) == 0) GTEST_SKIP() << "nothing tells when a file was made";
  manifest_.set_captured_unix_ns(INT64_MAX);
  ExpectLeft("db-wal", "it was there when the image was taken");
}

TEST_F(LaterLifeTest, OneOfAnotherUserKeepsTheDatabaseAsItIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  LiveOn("db-journal");
  ASSERT_EQ(::chown(Path("db-journal").c_str(), kNobody, kNobody), 0);
  ExpectLeft("db-journal", "it is of uid");
  manifest_.set_uid(kNobody);
  EXPECT_EQ(Apply()[0].action(), Report::SET_ASIDE) << "the job's user made it";
}

TEST_F(LaterLifeTest, OneThatIsReplacedMeanwhileStays) {
  LiveOn("db-journal");
  std::vector<FileAction> plan = Plan();
  Replace("db-journal", "another");
  const absl::Status status = ApplyRollback(Image(), rights_, &plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(Read("db-journal"), "another");
  EXPECT_EQ(Read("db"), Database("old and new pages"));
}

TEST_F(DatabaseRollbackTest, NamesAloneMakeNoDatabase) {
  Record("metrics", "one\n");
  Record("metrics-journal", "one\n");
  for (const char* name : {"metrics", "metrics-journal"}) Append(name, "two\n");
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::TRUNCATED) << report.path();
}

}  // namespace
}  // namespace rekindle::restore
