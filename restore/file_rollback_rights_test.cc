// Roll-back with the rights of the job's user: what these don't reach stays as it is.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/test_user.h"
#include "restore/file_rollback.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As the service takes them: of a thread alone.
void RightsOfNobody(const std::function<void()>& work) {
  std::thread([&] {
    if (::syscall(SYS_setgroups, 0, nullptr) != 0 ||
        ::syscall(SYS_setresgid, kNobody, kNobody, kNobody) != 0 ||
        ::syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0) {
      return;
    }
    work();
  }).join();
}

class OtherUserTest : public FileRollbackTest {
 protected:
  void SetUp() override {
    FileRollbackTest::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    rights_ = RightsOfNobody;
    // So that it may pass through.
    for (std::string path = folder_->path(); path.size() > 4; path = path.substr(0, path.rfind('/'))) {
      struct stat info;
      ASSERT_EQ(::stat(path.c_str(), &info), 0);
      if ((info.st_mode & 0001) == 0) {
        ASSERT_EQ(::chmod(path.c_str(), info.st_mode | 0001), 0);
      }
    }
  }
  void RecordOf(const std::string& name, uid_t owner, Recorded recorded = {}) {
    Record(name, "0123456789", recorded);
    ASSERT_EQ(::chown(Path(name).c_str(), owner, owner), 0);
    v1::WrittenFile* file = manifest_.mutable_written_files(manifest_.written_files_size() - 1);
    file->set_uid(owner);
    file->set_gid(owner);
  }
};

TEST_F(OtherUserTest, FilesOfOthersAreNotTouched) {
  RecordOf("theirs", kNobody);
  RecordOf("roots", 0);
  for (const char* name : {"theirs", "roots"}) Append(name, std::string("\0\1", 2));
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::TRUNCATED);
  EXPECT_EQ(reports[1].action(), Report::LEFT);
  EXPECT_THAT(reports[1].why(), HasSubstr("Permission denied"));
  EXPECT_EQ(Stat("roots").st_size, 12);
}

TEST_F(OtherUserTest, AStrangersFileInTheWayKeepsNobodyFromComingBack) {
  ASSERT_EQ(::mkdir(Path("all").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(Path("all").c_str(), 01777), 0);
  RecordOf("all/data", kNobody, {.in_place = true, .content = true});
  ASSERT_EQ(::unlink(Path("all/data").c_str()), 0);
  Write("all/.data.rekindle-new", "root's own");
  EXPECT_EQ(ApplyOne().action(), Report::MADE_AGAIN);
  EXPECT_EQ(Read("all/data"), "0123456789");
  EXPECT_EQ(Stat("all/data").st_uid, kNobody);
  EXPECT_THAT(ListDirectory(Path("all")).value(), ElementsAre(".data.rekindle-new", "data"));
  EXPECT_EQ(Read("all/.data.rekindle-new"), "root's own");
}

TEST_F(OtherUserTest, AStrangersFileInItsPlaceIsFoundBeforeOthersAreTouched) {
  ASSERT_EQ(::mkdir(Path("all").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(Path("all").c_str(), 01777), 0);
  RecordOf("all/data", kNobody, {.content = true, .is_new = true});
  RecordOf("all/log", kNobody);
  Append("all/log", "more");
  ASSERT_EQ(::unlink(Path("all/data").c_str()), 0);
  Write("all/data", "root's");
  ASSERT_EQ(::chmod(Path("all/data").c_str(), 0666), 0);
  const std::vector<FileAction> plan = Plan();
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_THAT(std::string(CheckPlan(plan).message()),
              AllOf(HasSubstr(Path("all/data")), HasSubstr("of uid 0"), HasSubstr("sticky")));
  ASSERT_EQ(::chown(Path("all/data").c_str(), kNobody, kNobody), 0);
  EXPECT_TRUE(CheckPlan(Plan()).ok());
  for (const Report& report : Apply()) EXPECT_NE(report.action(), Report::LEFT) << report.path();
  EXPECT_EQ(Read("all/data"), "0123456789");
}

TEST_F(OtherUserTest, NothingIsMadeThroughALinkedFolder) {
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Path("etc").c_str(), 0755), 0);
  RecordOf("folder/data", kNobody, {.in_place = true, .content = true});
  RemoveTree(Path("folder")).IgnoreError();
  ASSERT_EQ(::symlink(Path("etc").c_str(), Path("folder").c_str()), 0);
  Write("etc/data", "root's own");
  rollback_.set_mode(v1::Rollback::ALL);
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::LEFT);
  EXPECT_EQ(Read("etc/data"), "root's own");
  EXPECT_THAT(ListDirectory(Path("etc")).value(), ElementsAre("data"));
}

TEST_F(OtherUserTest, TailsStayBesideTheirLogsInFoldersThatTheUserCanNotWrite) {
  RecordOf("log", kNobody);
  Append("log", "tail");
  Report report = ApplyOne();
  ASSERT_EQ(report.action(), Report::TRUNCATED);
  std::string copy = report.tail_copy().substr(files_.size() + 1);
  EXPECT_EQ(Read(copy), "tail");
  EXPECT_EQ(Stat(copy).st_uid, kNobody);
  EXPECT_EQ(Stat(copy).st_gid, kNobody);
  EXPECT_EQ(Stat(copy).st_mode & 07777, Stat("log").st_mode & 07777);
}

TEST_F(OtherUserTest, WhatIsMadeAgainIsTheUsersAndNobodyElseSeesIt) {
  ASSERT_EQ(::mkdir(Path("home").c_str(), 0755), 0);
  ASSERT_EQ(::chown(Path("home").c_str(), kNobody, kNobody), 0);
  RecordOf("home/theirs", kNobody, {.in_place = true, .content = true});
  RecordOf("home/roots", 0, {.in_place = true, .content = true});
  RecordOf("home/group", kNobody, {.in_place = true, .content = true});
  for (const char* name : {"home/theirs", "home/roots", "home/group"})
    ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  rollback_.set_mode(v1::Rollback::ALL);
  manifest_.mutable_written_files(2)->set_gid(0);
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::MADE_AGAIN);
  EXPECT_EQ(Stat("home/theirs").st_uid, kNobody);
  EXPECT_EQ(Stat("home/theirs").st_mode & 07777, 0640u);
  EXPECT_EQ(reports[1].action(), Report::LEFT);
  EXPECT_THAT(reports[1].why(), HasSubstr("it was uid 0's"));
  EXPECT_EQ(Read("home/roots"), "(none)");
  EXPECT_EQ(reports[2].action(), Report::MADE_AGAIN);
  EXPECT_THAT(reports[2].why(), HasSubstr("could not be given to group 0"));
  EXPECT_EQ(Stat("home/group").st_mode & 07777, 0600u);
}

TEST_F(OtherUserTest, FoldersAreMadeWhereTheUserMay) {
  ASSERT_EQ(::mkdir(Path("home").c_str(), 0755), 0);
  ASSERT_EQ(::chown(Path("home").c_str(), kNobody, kNobody), 0);
  for (const char* name : {"home/folder", "folder"}) {
    ASSERT_EQ(::mkdir(Path(name).c_str(), 0755), 0);
    RecordOf(std::string(name) + "/data", kNobody, {.in_place = true, .content = true});
    RemoveTree(Path(name)).IgnoreError();
  }
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::MADE_AGAIN);
  EXPECT_EQ(Stat("home/folder").st_uid, kNobody);
  EXPECT_EQ(Stat("home/folder").st_mode & 07777, 0700u) << "nothing is known of it";
  EXPECT_EQ(reports[1].action(), Report::LEFT);
  EXPECT_THAT(reports[1].why(), HasSubstr("its folder can't be written"));
}

TEST_F(OtherUserTest, ReadOnlyFoldersRefuseWhatWouldBeMadeAgain) {
  RecordOf("data", kNobody, {.in_place = true, .content = true});
  ASSERT_EQ(::unlink(Path("data").c_str()), 0);
  rollback_.set_mode(v1::Rollback::ALL);
  std::vector<FileAction> plan = Plan();
  EXPECT_EQ(plan[0].report.action(), Report::LEFT);
  EXPECT_THAT(plan[0].report.why(), HasSubstr("its folder can't be written"));
  EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OtherUserTest, WhatCanNotBeReadToBeKeptIsNotReplaced) {
  ASSERT_EQ(::mkdir(Path("home").c_str(), 0755), 0);
  ASSERT_EQ(::chown(Path("home").c_str(), kNobody, kNobody), 0);
  RecordOf("home/log", kNobody, {.content = true});
  Replace("home/log", "root's");
  ASSERT_EQ(::chmod(Path("home/log").c_str(), 0600), 0);
  for (v1::Rollback::Mode mode : {v1::Rollback::APPEND, v1::Rollback::ALL}) {
    rollback_.set_mode(mode);
    std::vector<FileAction> plan = Plan();
    EXPECT_EQ(plan[0].report.action(), Report::LEFT);
    EXPECT_THAT(plan[0].report.why(),
                AllOf(HasSubstr("another file has its name"), HasSubstr("can't be opened")));
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kFailedPrecondition) << "it is too short";
  }
  EXPECT_EQ(Read("home/log"), "root's");
}

TEST_F(OtherUserTest, WithoutTheRightsNothingHappens) {
  Record("log", "one\n");
  Append("log", "two\n");
  rights_ = [](const std::function<void()>&) {};
  EXPECT_EQ(ApplyOne().action(), Report::LEFT);
  EXPECT_EQ(Read("log"), "one\ntwo\n");
}

}  // namespace
}  // namespace rekindle::restore
