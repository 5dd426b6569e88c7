#include "ckpt/tracked_files.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TrackedFilesTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Append(const std::string& name, const std::string& more) const {
    const UniqueFd fd = OpenFile(Path(name), O_WRONLY | O_CREAT | O_APPEND, 0640).value();
    ASSERT_TRUE(WriteFully(fd.get(), more.data(), more.size(), name).ok());
  }
  TrackedFiles Tracking(const std::vector<std::string>& patterns, uid_t user = 0) const {
    std::vector<std::string> full;
    for (const std::string& pattern : patterns) full.push_back(Path(pattern));
    return TrackedFiles(std::move(full), "/", {user, user, {}}, false);
  }
  std::vector<v1::WrittenFile> Look(TrackedFiles files) {
    warnings_.clear();
    return files.Look(Leases::BeginReading(), &warnings_);
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_tracked_files_test.").value();
  std::vector<std::string> warnings_;
};

TEST_F(TrackedFilesTest, AreRecordedAsTheyAre) {
  Append("events.1", "0123456789");
  Append("other", "x");
  const std::vector<v1::WrittenFile> found = Look(Tracking({"events.*", "events.1"}));
  ASSERT_THAT(found, SizeIs(1));
  struct stat info;
  ASSERT_EQ(::stat(Path("events.1").c_str(), &info), 0);
  EXPECT_EQ(found[0].path(), Path("events.1"));
  EXPECT_EQ(found[0].size(), 10u);
  EXPECT_EQ(found[0].inode(), info.st_ino);
  EXPECT_EQ(found[0].device(), info.st_dev);
  EXPECT_EQ(found[0].uid(), ::geteuid());
  EXPECT_TRUE(found[0].tracked());
  EXPECT_FALSE(found[0].in_place());
  EXPECT_NE(found[0].ending(), 0u);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TrackedFilesTest, WhatIsWrittenBetweenTheLooksCounts) {
  Append("log", "one\n");
  TrackedFiles files = Tracking({"log"});
  files.LookAhead();
  Append("log", "two\n");
  const std::vector<v1::WrittenFile> found = files.Look(Leases::BeginReading(), &warnings_);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].size(), 8u);
  const std::vector<v1::WrittenFile> anew = Look(Tracking({"log"}));
  ASSERT_THAT(anew, SizeIs(1));
  EXPECT_EQ(found[0].ending(), anew[0].ending());
}

TEST_F(TrackedFilesTest, FilesOfOthersAndPartsOfDatabasesAreNone) {
  Append("log", "x");
  Append("db-wal", "x");
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  ASSERT_EQ(::chown(Path("log").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  EXPECT_THAT(Look(Tracking({"*"}, 1)), IsEmpty());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("not the job's user's"));
  EXPECT_THAT(Look(Tracking({"*"}, kNobody)), SizeIs(1));
  EXPECT_THAT(Look(Tracking({"*"})), SizeIs(1));
}

// What the user could not find out by himself the warnings must not tell.
TEST_F(TrackedFilesTest, FoldersThatAreClosedToTheUserAreNotLookedInto) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act for others";
  ASSERT_EQ(::mkdir(Path("closed").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  Append("closed/id_rsa", "x");
  Append("closed/his", "x");
  ASSERT_EQ(::chown(Path("closed/his").c_str(), kNobody, kNobody), 0);
  for (const char* pattern :
       {"closed/id_*", "closed/none_*", "closed/id_rsa", "closed", "closed/his", "**"}) {
    EXPECT_THAT(Look(Tracking({pattern}, kNobody)), IsEmpty()) << pattern;
    EXPECT_THAT(warnings_, IsEmpty()) << pattern;
  }
  ASSERT_EQ(::chown(Path("closed").c_str(), kNobody, kNobody), 0);
  EXPECT_THAT(Look(Tracking({"closed/h*"}, kNobody)), SizeIs(1));
}

TEST_F(TrackedFilesTest, FilesThatTheUserMayNotReadHaveNoEnding) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act for others";
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  Append("log", "x");
  ASSERT_EQ(::chown(Path("log").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::chmod(Path("log").c_str(), 0), 0);
  const std::vector<v1::WrittenFile> found = Look(Tracking({"log"}, kNobody));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].ending(), 0u);
}

// As FUSE is whose server is part of the job.
class SilentFileSystem {
 public:
  explicit SilentFileSystem(std::string path)
      : path_(std::move(path)), server_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string options =
        absl::StrCat("fd=", server_.get(), ",rootmode=40000,user_id=0,group_id=0,allow_other");
    mounted_ = ::mkdir(path_.c_str(), 0755) == 0 && server_.valid() &&
               ::mount("silent", path_.c_str(), "fuse", 0, options.c_str()) == 0;
  }
  ~SilentFileSystem() {
    server_.Reset();  // what waits for it fails
    if (mounted_) (void)::umount2(path_.c_str(), MNT_DETACH);
  }
  SilentFileSystem(const SilentFileSystem&) = delete;
  SilentFileSystem& operator=(const SilentFileSystem&) = delete;

  bool mounted() const { return mounted_; }

 private:
  const std::string path_;
  UniqueFd server_;
  bool mounted_ = false;
};

TEST_F(TrackedFilesTest, AFileSystemThatDoesNotAnswerHoldsNobody) {
  const SilentFileSystem silent(Path("silent"));
  if (!silent.mounted()) GTEST_SKIP() << "FUSE can't be mounted here";
  Append("log", "x");
  TrackedFiles files({Path("log"), Path("silent/*")}, "/", {}, false,
                     {absl::Milliseconds(200), absl::Milliseconds(200)});
  EXPECT_THAT(files.Look(Leases::BeginReading(), &warnings_), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("does not answer")));
  // Nor is it asked again and again.
  files.LookAhead();
  EXPECT_THAT(files.Look(Leases::BeginReading(), &warnings_), IsEmpty());
  EXPECT_THAT(warnings_, SizeIs(2));
}

TEST_F(TrackedFilesTest, NorDoesItKeepOthersFilesOutOfTheirImages) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act for others";
  const SilentFileSystem silent(Path("silent"));
  if (!silent.mounted()) GTEST_SKIP() << "FUSE can't be mounted here";
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  const auto look = [&] {
    TrackedFiles files({Path("silent/*")}, "/", {1000, 1000, {}}, false,
                       {absl::Milliseconds(1), absl::Milliseconds(1)});
    warnings_.clear();
    (void)files.Look(Leases::BeginReading(), &warnings_);
    return warnings_.size() == 1 && absl::StrContains(warnings_[0], "of images before this one");
  };
  int looks = 1;
  while (!look() && looks < 1000) ++looks;
  EXPECT_LT(looks, 1000) << "each of them has a thread";
  Append("log", "x");
  EXPECT_THAT(Look(Tracking({"log"})), SizeIs(1)) << "it is another user's";
}

TEST_F(TrackedFilesTest, ThereAreSoManyAndNoMore) {
  for (size_t i = 0; i <= kMostTrackedFiles; ++i) Append(absl::StrCat("log", i), "");
  EXPECT_THAT(Look(Tracking({""})), SizeIs(kMostTrackedFiles));
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("more than 1000 files match --track-path"));
}

}  // namespace
}  // namespace rekindle::ckpt
