#include "ckpt/tracked_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/file.h"
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
    return TrackedFiles(std::move(full), "/", user, false);
  }
  std::vector<v1::WrittenFile> Look(TrackedFiles files) {
    warnings_.clear();
    return files.Look(*Leases::BeginReading(), &warnings_);
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
  const std::vector<v1::WrittenFile> found = files.Look(*Leases::BeginReading(), &warnings_);
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
  ASSERT_EQ(::chown(Path("log").c_str(), 65534, 65534), 0);
  EXPECT_THAT(Look(Tracking({"*"}, 1)), IsEmpty());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("not the job's user's"));
  EXPECT_THAT(Look(Tracking({"*"}, 65534)), SizeIs(1));
  EXPECT_THAT(Look(Tracking({"*"})), SizeIs(1));
}

TEST_F(TrackedFilesTest, ThereAreSoManyAndNoMore) {
  for (size_t i = 0; i <= kMostTrackedFiles; ++i) Append(absl::StrCat("log", i), "");
  EXPECT_THAT(Look(Tracking({""})), SizeIs(kMostTrackedFiles));
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("more than 1000 files match --track-path"));
}

}  // namespace
}  // namespace rekindle::ckpt
