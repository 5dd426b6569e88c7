#include "restore/files_behind_links.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/file.h"
#include "base/test_user.h"
#include "criu/trusted_links.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::HasSubstr;

class FilesBehindLinksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    for (const char* name : {"roots", "theirs", "everybodys"})
      ASSERT_EQ(::mkdir(Path(name).c_str(), 0755), 0);
    ASSERT_EQ(::chmod(Path("everybodys").c_str(), 0777), 0);
    ASSERT_EQ(::chown(Path("theirs").c_str(), kNobody, kNobody), 0);
    ASSERT_TRUE(WriteFileAtomically(Path("roots/file"), "text").ok());
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Link(const std::string& to, const std::string& at, uid_t owner = 0) {
    ASSERT_EQ(::symlink(to.c_str(), Path(at).c_str()), 0) << at;
    ASSERT_EQ(::lchown(Path(at).c_str(), owner, owner), 0) << at;
  }
  absl::Status Check(const std::string& name, std::optional<Owner> user = std::nullopt,
                     const std::set<std::string>& replaced = {}) const {
    v1::JobManifest manifest;
    manifest.add_files()->set_path(Path(name));
    return CheckLinks(manifest, user, SeenFrom::kMachine, replaced);
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_links_test.").value();
};

TEST_F(FilesBehindLinksTest, WhatOthersHavePutThereIsNotFollowed) {
  Link(Path("roots/file"), "everybodys/link", kNobody);
  Link(Path("roots/file"), "everybodys/of root", 0);
  Link(Path("roots"), "theirs/folder", kNobody);
  Link(Path("theirs/folder"), "roots/to theirs");
  for (const char* name :
       {"everybodys/link", "everybodys/of root", "theirs/folder/file", "roots/to theirs/file"}) {
    const absl::Status told = Check(name);
    EXPECT_EQ(told.code(), absl::StatusCode::kPermissionDenied) << name;
    EXPECT_THAT(told.message(), HasSubstr(Path(name)));
    EXPECT_THAT(told.message(), HasSubstr("go on with " + Path("roots/file")));
    EXPECT_THAT(told.message(), HasSubstr(kUntrustedLink));
    EXPECT_TRUE(Check(name, std::nullopt, {Path(name)}).ok()) << "it does not get that";
  }
}

TEST_F(FilesBehindLinksTest, WhatRootHasMovedIs) {
  Link("file", "roots/second");
  Link("./roots", "moved");
  Link(Path("moved/../moved"), "twice");
  for (const char* name :
       {"roots/file", "roots/second", "moved/second", "twice/file", "roots/gone", "gone/file"})
    EXPECT_TRUE(Check(name).ok()) << Check(name);
}

TEST_F(FilesBehindLinksTest, AJobsUserMayMoveItsFiles) {
  Link(Path("roots"), "theirs/folder", kNobody);
  EXPECT_TRUE(Check("theirs/folder/file", Owner{kNobody, kNobody, {}}).ok());
  EXPECT_FALSE(Check("theirs/folder/file", Owner{kNobody - 1, kNobody - 1, {}}).ok());
  // In a folder of its group; a link of one of that is another's.
  Link(Path("roots"), "theirs/others", kNobody - 1);
  ASSERT_EQ(::chown(Path("theirs").c_str(), kNobody, 100), 0);
  ASSERT_EQ(::chmod(Path("theirs").c_str(), 0775), 0);
  EXPECT_TRUE(Check("theirs/folder/file", Owner{kNobody, kNobody, {}}).ok());
  EXPECT_FALSE(Check("theirs/others/file", Owner{kNobody, kNobody, {}}).ok());
  ASSERT_EQ(::chmod(Path("theirs").c_str(), 0777), 0);
  EXPECT_FALSE(Check("theirs/folder/file", Owner{kNobody, kNobody, {}}).ok());
}

TEST_F(FilesBehindLinksTest, AGroupDoesNotMoveRootsLinks) {
  Link(Path("theirs"), "roots/link");
  EXPECT_TRUE(Check("roots/link/file").ok());
  ASSERT_EQ(::chown(Path("roots").c_str(), 0, 100), 0);
  ASSERT_EQ(::chmod(Path("roots").c_str(), 0775), 0);
  EXPECT_FALSE(Check("roots/link/file").ok());
}

TEST_F(FilesBehindLinksTest, InAStickyFolderEverybodysLinksAreTheirOwn) {
  ASSERT_EQ(::chmod(Path("everybodys").c_str(), 01777), 0);
  Link(Path("roots"), "everybodys/of root", 0);
  Link(Path("roots"), "everybodys/other", kNobody);
  EXPECT_TRUE(Check("everybodys/of root/file").ok());
  EXPECT_FALSE(Check("everybodys/other/file").ok());
}

// The kernel lets anybody give it another name, where fs.protected_hardlinks is off.
TEST_F(FilesBehindLinksTest, ARootsLinkOfTwoNamesMayBeWhereAStrangerWantsIt) {
  Link(Path("roots"), "roots/link");
  EXPECT_TRUE(Check("roots/link/file").ok());
  ASSERT_EQ(::linkat(AT_FDCWD, Path("roots/link").c_str(), AT_FDCWD, Path("theirs/link").c_str(), 0), 0);
  EXPECT_FALSE(Check("theirs/link/file", Owner{kNobody, kNobody, {}}).ok());
}

TEST_F(FilesBehindLinksTest, ALinkAtTheEndIsNotFollowedByWhoDoesNotWantIt) {
  Link(Path("roots"), "moved");
  Link("file", "roots/link");
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto open = [&](const std::string& name, int flags) {
    return UniqueFd(OpenByTrustedLinks(root.get(), Path(name).c_str() + 1, flags | O_CLOEXEC, ::geteuid()));
  };
  EXPECT_TRUE(open("moved/link", O_RDONLY).valid());
  EXPECT_TRUE(open("moved/file", O_RDONLY | O_NOFOLLOW).valid());
  EXPECT_FALSE(open("moved/link", O_RDONLY | O_NOFOLLOW).valid());
  EXPECT_EQ(errno, ELOOP);
}

TEST_F(FilesBehindLinksTest, FoldersOfRemovedFiles) {
  Link(Path("roots"), "theirs/folder", kNobody);
  const auto check = [&](const std::string& name, std::optional<Owner> user = std::nullopt) {
    return CheckLinks({}, user, SeenFrom::kMachine, {}, {Path(name), "/removed", "/proc/self/cwd/removed"});
  };
  EXPECT_TRUE(check("theirs/gone").ok());
  EXPECT_TRUE(check("theirs/folder").ok()) << "the name itself is made anew";
  const absl::Status told = check("theirs/folder/gone");
  EXPECT_EQ(told.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(told.message(),
              HasSubstr(Path("theirs/folder") + ", where the job had a file that was removed"));
  EXPECT_TRUE(check("theirs/folder/gone", Owner{kNobody - 1, kNobody - 1, {}}).ok()) << "by his own rights";
}

TEST_F(FilesBehindLinksTest, TheRootFolder) {
  v1::JobManifest manifest;
  for (const char* path : {"/", "//", ""}) manifest.add_files()->set_path(path);
  EXPECT_TRUE(CheckLinks(manifest, std::nullopt, SeenFrom::kMachine, {}).ok());
}

TEST_F(FilesBehindLinksTest, ACopyIsNotToldWhatOnlyARestoreMay) {
  Link(Path("roots/file"), "everybodys/link", kNobody);
  v1::JobManifest manifest;
  manifest.add_files()->set_path(Path("everybodys/link"));
  const absl::Status told =
      CheckLinks(manifest, std::nullopt, SeenFrom::kMachine, {}, {}, CheckedFor::kClone);
  EXPECT_EQ(told.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(told.message(), ::testing::Not(HasSubstr("--ignore-mismatch")));
}

TEST_F(FilesBehindLinksTest, ACircleEnds) {
  Link("b", "roots/a");
  Link("a", "roots/b");
  EXPECT_FALSE(Check("roots/a").ok());
}

}  // namespace
}  // namespace rekindle::restore
