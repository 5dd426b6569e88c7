// Files that are one database of SQLite: what `append` does with them.
#include "restore/database_rollback.h"

#include <sys/mman.h>

#include <filesystem>

#include "base/test_child.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Property;

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

TEST_F(DatabaseRollbackTest, NamesAloneMakeNoDatabase) {
  Record("metrics", "one\n");
  Record("metrics-journal", "one\n");
  for (const char* name : {"metrics", "metrics-journal"}) Append(name, "two\n");
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::TRUNCATED) << report.path();
}

}  // namespace
}  // namespace rekindle::restore
