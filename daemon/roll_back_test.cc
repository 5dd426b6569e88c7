#include "daemon/roll_back.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_user.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using store::StatusOf;
using ::testing::HasSubstr;

// What is done with which file is tested where it is decided (restore/file_rollback_test.cc).
class RollBackFilesTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    ASSERT_EQ(::chmod(folder_->path().c_str(), 0755), 0);
    manifest_.set_uid(kNobody);
  }

  // A file that had "one" in it when the image was taken, and has more now.
  std::string Make(const std::string& name, uid_t owner) {
    const std::string path = folder_->path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, "one\ntwo\n", 0644).ok());
    EXPECT_EQ(::chown(path.c_str(), owner, owner), 0);
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    v1::WrittenFile* file = manifest_.add_written_files();
    file->set_path(path);
    file->set_size(4);
    file->set_inode(info.st_ino);
    return path;
  }

  absl::StatusOr<std::vector<v1::FileRollback>> RollBack(const std::optional<RunAs>& user) {
    store::TestImage image;
    image.blobs["rekindle/job"] = manifest_.SerializeAsString();
    auto committed = image.Commit(*store_, "job:1", "", /*replace=*/true);
    if (!committed.ok()) return committed.status();
    auto reader = store_->OpenImage("job:1");
    if (!reader.ok()) return reader.status();
    auto files = RollBackFiles(**reader, manifest_, rollback_, user);
    if (!files.ok()) return files.status();
    if (!rollback_.dry_run()) {
      const size_t before = files->Reports().size();
      EXPECT_EQ(before + files->cut_last().size(), manifest_.written_files().size());
      if (absl::Status cut = files->CutOff(); !cut.ok()) return cut;
    }
    return files->Reports();
  }

  v1::JobManifest manifest_;
  v1::Rollback rollback_;
};

TEST_F(RollBackFilesTest, WithTheRightsOfTheJobsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  const std::string theirs = Make("theirs", kNobody), roots = Make("roots", 0);
  auto files = RollBack(UserOfJob(manifest_));
  RK_ASSERT_OK(files);
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].action(), v1::FileRollback::TRUNCATED);
  EXPECT_EQ((*files)[1].action(), v1::FileRollback::LEFT);
  EXPECT_EQ(ReadFile(theirs).value(), "one\n");
  EXPECT_EQ(ReadFile(roots).value(), "one\ntwo\n");
  EXPECT_EQ(ReadFile((*files)[0].tail_copy()).value_or("(none)"), "two\n");
  EXPECT_EQ(::geteuid(), 0u) << "this thread keeps its rights";

  RK_ASSERT_OK(RollBack(std::nullopt));
  EXPECT_EQ(ReadFile(roots).value(), "one\n");
}

TEST_F(RollBackFilesTest, ADryRunChangesNothingAndRefusesNothing) {
  const std::string path = Make("log", ::geteuid()), gone = Make("gone", ::geteuid());
  ASSERT_EQ(::unlink(gone.c_str()), 0);
  rollback_.set_dry_run(true);
  auto files = RollBack(std::nullopt);
  RK_ASSERT_OK(files);
  EXPECT_EQ((*files)[0].action(), v1::FileRollback::TRUNCATED);
  EXPECT_EQ((*files)[1].action(), v1::FileRollback::LEFT);
  EXPECT_EQ(ReadFile(path).value(), "one\ntwo\n");

  rollback_.set_dry_run(false);
  files = RollBack(std::nullopt);
  EXPECT_EQ(files.status().code(), absl::StatusCode::kFailedPrecondition) << files.status();
  EXPECT_THAT(std::string(files.status().message()), HasSubstr(gone + ": it is gone"));
  EXPECT_EQ(ReadFile(path).value(), "one\ntwo\n") << "all is checked before anything is changed";
}

TEST(UserOfJobTest, RootsJobsAndServicesOfOthersNeedNoOtherUser) {
  v1::JobManifest manifest;
  EXPECT_FALSE(UserOfJob(manifest).has_value());
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  manifest.set_uid(kNobody);
  auto user = UserOfJob(manifest);
  ASSERT_TRUE(user.has_value());
  EXPECT_EQ(user->uid, kNobody);
  EXPECT_EQ(user->gid, kNobody);
  manifest.set_uid(4000000);
  user = UserOfJob(manifest);
  ASSERT_TRUE(user.has_value());
  EXPECT_EQ(user->gid, kNobody) << "of one that this machine does not know, surely not root's group";
  EXPECT_THAT(user->groups, testing::IsEmpty());
}

}  // namespace
}  // namespace rekindle::daemon
