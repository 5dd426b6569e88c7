#include "base/follow_in_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

class FollowInRootTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"/root", "/root/d", "/root/d/e", "/d"})
      ASSERT_EQ(::mkdir((folder_.path() + name).c_str(), 0700), 0);
    root_ = OpenFile(folder_.path() + "/root", O_PATH | O_DIRECTORY).value();
  }
  void Link(const std::string& to, const std::string& name) {
    ASSERT_EQ(::symlinkat(to.c_str(), root_.get(), name.c_str()), 0);
  }
  // The inode that it leads to; 0: to none.
  ino_t At(const std::string& path) {
    const UniqueFd found = FollowInRoot(root_.get(), path, O_DIRECTORY);
    struct stat info;
    return found.valid() && ::fstat(found.get(), &info) == 0 ? info.st_ino : 0;
  }
  ino_t InodeOf(const std::string& name) {
    struct stat info;
    return ::stat((folder_.path() + name).c_str(), &info) == 0 ? info.st_ino : 0;
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make(testing::TempDir(), "follow_in_root_test.").value();
  UniqueFd root_;
};

TEST_F(FollowInRootTest, Found) {
  EXPECT_EQ(At("/"), InodeOf("/root"));
  EXPECT_EQ(At("/d/e"), InodeOf("/root/d/e"));
}

TEST_F(FollowInRootTest, LinksLeadNowhereElse) {
  Link("/d/e", "absolute");
  Link("d", "relative");
  Link("../../../d", "out");
  Link("/proc/self/cwd", "magic");
  EXPECT_EQ(At("/absolute"), InodeOf("/root/d/e"));
  EXPECT_EQ(At("/relative/e"), InodeOf("/root/d/e"));
  EXPECT_EQ(At("/out"), InodeOf("/root/d"));
  EXPECT_EQ(At("/magic"), 0u);
}

TEST_F(FollowInRootTest, WhatIsNoFolder) {
  ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/root/file", "").ok());
  Link("gone", "dangling");
  EXPECT_FALSE(FollowInRoot(root_.get(), "/file", O_DIRECTORY).valid());
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(FollowInRoot(root_.get(), "/dangling", O_DIRECTORY).valid());
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(FollowInRootTest, PlainPathsLeadToNothingThatThisProcessHasOpen) {
  Link("d", "relative");
  Link(absl::StrCat("/proc/self/fd/", root_.get()), "magic");
  EXPECT_TRUE(OpenPlain(root_.get(), "relative/e", O_RDONLY | O_DIRECTORY).valid());
  EXPECT_TRUE(OpenPlain(root_.get(), "relative", O_PATH | O_DIRECTORY).valid());
  EXPECT_FALSE(OpenPlain(root_.get(), "magic/d", O_RDONLY | O_DIRECTORY).valid());
  EXPECT_EQ(errno, ELOOP);
}

}  // namespace
}  // namespace rekindle
