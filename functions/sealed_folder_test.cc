#include "functions/sealed_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::functions {
namespace {

const Owner kAnna{1000, 1000, {}}, kBert{1001, 1000, {}};

class SealedFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to others";
    auto made = TemporaryDirectory::Make("/tmp", "rk-sealed-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
    std::filesystem::create_directories(Path("sub"));
    ASSERT_TRUE(WriteFileAtomically(Path("sub/app.py"), "code", 0640).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("run"), "code", 04755).ok());
    std::filesystem::create_symlink("sub/app.py", Path("link"));
    for (const char* name : {"", "sub", "sub/app.py", "run", "link"})
      ASSERT_EQ(::lchown(Path(name).c_str(), kAnna.uid, kAnna.gid), 0);
    ASSERT_EQ(::chmod(Path("run").c_str(), 04755), 0);
  }
  std::string Path(const std::string& name) const {
    return name.empty() ? directory_->path() + "/sealed" : absl::StrCat(Path(""), "/", name);
  }
  mode_t ModeOf(const std::string& name) const {
    struct stat info {};
    EXPECT_EQ(::lstat(Path(name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_uid, 0u) << name;
    return info.st_mode & 07777;
  }
  // With this user's rights: 0, or the error.
  static int Try(const Owner& owner, const std::function<int()>& call) {
    int error = 0;
    EXPECT_TRUE(WithFileRightsOf(owner, [&] {
                  error = call() >= 0 ? 0 : errno;
                  return absl::OkStatus();
                }).ok());
    return error;
  }
  int Read(const Owner& owner, const std::string& name) const {
    return Try(owner, [&] { return UniqueFd(::open(Path(name).c_str(), O_RDONLY | O_CLOEXEC)).get(); });
  }
  int Write(const Owner& owner, const std::string& name) const {
    return Try(owner, [&] { return UniqueFd(::open(Path(name).c_str(), O_WRONLY | O_CLOEXEC)).get(); });
  }

  std::optional<TemporaryDirectory> directory_;
};

TEST_F(SealedFolderTest, ItsOwnerReadsItAndNobodyChangesIt) {
  EXPECT_FALSE(IsSealed(Path(""), kAnna));
  EXPECT_TRUE(SealFolder(Path(""), kAnna).ok());
  EXPECT_TRUE(IsSealed(Path(""), kAnna));
  EXPECT_FALSE(IsSealed(Path(""), kBert));
  EXPECT_EQ(*ReaderOf(Path("")), kAnna.uid);
  for (const char* name : {"", "sub", "sub/app.py", "run", "link"}) EXPECT_EQ(Read(kAnna, name), 0) << name;
  for (const char* name : {"", "sub", "sub/app.py", "run", "link"})
    EXPECT_EQ(Read(kBert, name), EACCES) << name;
  for (const char* name : {"sub/app.py", "run", "link"}) EXPECT_EQ(Write(kAnna, name), EACCES) << name;
  for (const char* folder : {"", "sub"}) {
    EXPECT_EQ(Try(kAnna, [&] { return ::mkdir(Path(absl::StrCat(folder, "/new")).c_str(), 0700); }), EACCES);
    EXPECT_EQ(Try(kAnna, [&] { return ::chmod(Path(folder).c_str(), 0777); }), EPERM);
  }
  EXPECT_EQ(Try(kAnna, [&] { return ::unlink(Path("run").c_str()); }), EACCES);
  EXPECT_EQ(Try(kAnna, [&] { return ::rename(Path("sub").c_str(), Path("other").c_str()); }), EACCES);
  EXPECT_EQ(ModeOf("sub/app.py"), 0444u);
  EXPECT_EQ(ModeOf("run"), 0555u);
  EXPECT_TRUE(SealFolder(Path(""), kAnna).ok());
  EXPECT_EQ(Read(kAnna, "sub/app.py"), 0);
  EXPECT_EQ(ModeOf("run"), 0555u);
}

TEST_F(SealedFolderTest, WhatIsAnothersStaysHis) {
  ASSERT_TRUE(WriteFileAtomically(Path("of-bert"), "x", 0600).ok());
  ASSERT_EQ(::chown(Path("of-bert").c_str(), kBert.uid, kBert.gid), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("roots"), "x", 0600).ok());
  EXPECT_TRUE(SealFolder(Path(""), kAnna).ok());
  struct stat info {};
  ASSERT_EQ(::stat(Path("of-bert").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kBert.uid);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(ModeOf("roots"), 0600u);
  EXPECT_EQ(Read(kAnna, "roots"), EACCES);
}

}  // namespace
}  // namespace rekindle::functions
