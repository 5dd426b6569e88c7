#include "cli/target_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::cli {
namespace {

class TargetFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/target_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    ASSERT_EQ(::mkdir(Path("elsewhere").c_str(), 0700), 0);
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(directory_).ok()); }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  void Link(const std::string& name, const std::string& to) const {
    ASSERT_EQ(::symlink(to.c_str(), Path(name).c_str()), 0);
  }
  static absl::Status WriteTo(const std::string& name, const std::string& content) {
    absl::StatusOr<Target> target = FindTarget(name);
    if (!target.ok()) return target.status();
    EXPECT_FALSE(target->in_place);
    absl::StatusOr<TargetFile> file = TargetFile::Create(target->path, 0600);
    if (!file.ok()) return file.status();
    if (absl::Status written = file->Write(content); !written.ok()) return written;
    return file->Complete();
  }
  void ExpectIsLink(const std::string& name) const {
    struct stat info;
    ASSERT_EQ(::lstat(Path(name).c_str(), &info), 0);
    EXPECT_TRUE(S_ISLNK(info.st_mode)) << name;
  }

  std::string directory_;
};

TEST_F(TargetFileTest, LinksStayAndWhatTheyLeadToIsWritten) {
  Link("absolute", Path("elsewhere/there"));
  Link("relative", "elsewhere/next");
  Link("elsewhere/next", "there");
  ASSERT_TRUE(WriteFileAtomically(Path("elsewhere/there"), "old").ok());
  for (const char* name : {"absolute", "relative"}) {
    ASSERT_TRUE(WriteTo(Path(name), name).ok());
    EXPECT_EQ(*ReadFile(Path("elsewhere/there")), name);
    ExpectIsLink(name);
  }
  ExpectIsLink("elsewhere/next");
  EXPECT_EQ(*ListDirectory(Path("elsewhere")), (std::vector<std::string>{"next", "there"}));
}

TEST_F(TargetFileTest, ALinkToNothingMakesItsFile) {
  Link("new", "elsewhere/new");
  ASSERT_TRUE(WriteTo(Path("new"), "content").ok());
  EXPECT_EQ(*ReadFile(Path("elsewhere/new")), "content");
  ExpectIsLink("new");
  Link("astray", "nowhere/new");
  absl::Status status = WriteTo(Path("astray"), "content");
  EXPECT_TRUE(absl::StrContains(status.message(), "nowhere/new")) << status;
}

TEST_F(TargetFileTest, LinksInACircleAreAnError) {
  Link("one", "two");
  Link("two", "one");
  absl::Status status = FindTarget(Path("one")).status();
  EXPECT_TRUE(absl::StrContains(status.message(), Path("one"))) << status;
}

TEST_F(TargetFileTest, WhatIsNotCompleteIsNotThere) {
  ASSERT_TRUE(WriteFileAtomically(Path("elsewhere/file"), "old").ok());
  {
    absl::StatusOr<TargetFile> file = TargetFile::Create(Path("elsewhere/file"), 0600);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Write("new").ok());
  }
  EXPECT_EQ(*ListDirectory(Path("elsewhere")), std::vector<std::string>{"file"});
  EXPECT_EQ(*ReadFile(Path("elsewhere/file")), "old");
}

TEST_F(TargetFileTest, PipesDevicesAndFoldersAreWrittenInPlace) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  Link("to_null", "/dev/null");
  for (const std::string& name :
       {Path("fifo"), std::string("/dev/null"), Path("to_null"), Path("elsewhere")}) {
    absl::StatusOr<Target> target = FindTarget(name);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_TRUE(target->in_place) << name;
    EXPECT_EQ(target->descriptor, -1) << name;
  }
}

// What was written to it before stays, also when it is a regular file.
TEST_F(TargetFileTest, ADescriptorIsWrittenWhereItStands) {
  UniqueFd fd(::open(Path("file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(WriteFully(fd.get(), "before ", 7, "file").ok());
  Link("link", absl::StrCat("/dev/fd/", fd.get()));
  for (const std::string& name : {Path("link"), absl::StrCat("/proc/self/fd/", fd.get())}) {
    absl::StatusOr<Target> target = FindTarget(name);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_TRUE(target->in_place);
    EXPECT_EQ(target->descriptor, fd.get());
    absl::StatusOr<UniqueFd> opened = OpenInPlace(*target);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(WriteFully(opened->get(), "now ", 4, "file").ok());
  }
  EXPECT_EQ(*ReadFile(Path("file")), "before now now ");
}

TEST_F(TargetFileTest, SomebodyElsesLinkInAFolderOfAllIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a link of somebody else";
  ASSERT_EQ(::mkdir(Path("all").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(Path("all").c_str(), 01777), 0);
  Link("all/link", Path("elsewhere/file"));
  ASSERT_TRUE(FindTarget(Path("all/link")).ok());
  ASSERT_EQ(::lchown(Path("all/link").c_str(), 1234, 1234), 0);
  absl::StatusOr<Target> target = FindTarget(Path("all/link"));
  EXPECT_EQ(target.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(target.status().message(), "uid 1234")) << target.status();
}

}  // namespace
}  // namespace rekindle::cli
