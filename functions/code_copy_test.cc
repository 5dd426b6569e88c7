#include "functions/code_copy.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/file_rights.h"
#include "base/test_user.h"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;

class CodeCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-code-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(Source("").c_str(), 0755), 0);
  }

  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
  std::string Source(const std::string& name) const {
    return name.empty() ? Path("source") : absl::StrCat(Path("source"), "/", name);
  }
  std::string Copy(const std::string& name) const { return absl::StrCat(Path("copy"), last_, "/", name); }

  void Write(const std::string& name, const std::string& content, mode_t mode = 0644) {
    std::filesystem::create_directories(std::filesystem::path(Source(name)).parent_path());
    ASSERT_TRUE(WriteFileAtomically(Source(name), content, mode).ok());
    ASSERT_EQ(::chmod(Source(name).c_str(), mode), 0);
  }
  void Link(const std::string& target, const std::string& name) {
    ASSERT_EQ(::symlink(target.c_str(), Source(name).c_str()), 0);
  }

  // Into a new folder; Copy() then names what is in it.
  absl::Status Take(CodeCopyOptions options = {}, const Owner& owner = {}) {
    const std::string target = absl::StrCat(Path("copy"), ++last_);
    EXPECT_EQ(::mkdir(target.c_str(), 0700), 0);
    EXPECT_EQ(::chown(target.c_str(), owner.uid, owner.gid), 0);
    return WithFileRightsOf(owner, [&]() -> absl::Status {
      CodeCopier copier(std::move(options));
      UniqueFd folder(::open(target.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      absl::Status status = copier.Copy(Source(""), folder.get());
      bytes_ = copier.bytes();
      digest_ = copier.Digest();
      return status;
    });
  }

  std::optional<TemporaryDirectory> directory_;
  int last_ = 0;
  uint64_t bytes_ = 0;
  std::string digest_;
};

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

std::string TargetOf(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

TEST_F(CodeCopyTest, FilesComeWithTheirPermissionsAndTimes) {
  Write("app.py", "def handler(event, context): pass\n");
  Write("bin/tool", std::string(3 << 20, 'x'), 04755);
  const timespec times[] = {{1, 0}, {1234567890, 500}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Source("app.py").c_str(), times, 0), 0);
  ASSERT_EQ(::mkdir(Source("empty").c_str(), 0500), 0);
  ASSERT_TRUE(Take().ok());
  EXPECT_EQ(*ReadFile(Copy("app.py")), "def handler(event, context): pass\n");
  EXPECT_EQ(ReadFile(Copy("bin/tool"))->size(), size_t{3} << 20);
  EXPECT_EQ(ModeOf(Copy("app.py")), 0644u);
  EXPECT_EQ(ModeOf(Copy("bin/tool")), 0755u);  // no set-user-ID
  EXPECT_EQ(ModeOf(Copy("empty")), 0700u);     // or its owner could not remove it
  struct stat info {};
  ASSERT_EQ(::stat(Copy("app.py").c_str(), &info), 0);
  EXPECT_EQ(info.st_mtim.tv_sec, 1234567890);
  EXPECT_EQ(info.st_mtim.tv_nsec, 500);
  EXPECT_EQ(bytes_, (3u << 20) + 34u);
}

TEST_F(CodeCopyTest, TheDigestIsThatOfNamesPermissionsAndContents) {
  Write("a", "1");
  Write("b/c", "2");
  Link("a", "l");
  ASSERT_TRUE(Take().ok());
  const std::string first = digest_;
  EXPECT_EQ(first.size(), 64u);
  ASSERT_EQ(::utimensat(AT_FDCWD, Source("a").c_str(), nullptr, 0), 0);
  ASSERT_TRUE(Take().ok());
  EXPECT_EQ(digest_, first);

  std::vector<std::string> digests = {first};
  auto differs = [&] {
    ASSERT_TRUE(Take().ok());
    EXPECT_THAT(digests, ::testing::Not(::testing::Contains(digest_)));
    digests.push_back(digest_);
  };
  Write("a", "3");
  differs();
  Write("a", "1", 0755);
  differs();
  ASSERT_EQ(::rename(Source("a").c_str(), Source("a2").c_str()), 0);
  differs();
  ASSERT_EQ(::unlink(Source("l").c_str()), 0);
  Link("a2", "l");
  differs();
  ASSERT_EQ(::rename(Source("b/c").c_str(), Source("c").c_str()), 0);
  differs();
}

TEST_F(CodeCopyTest, LinksOutOfTheFolderBecomeWhatTheyLeadTo) {
  Write("real/inner", "inside");
  Link("real/inner", "inside");
  Link("../inside", "real/up");
  ASSERT_EQ(::mkdir(Path("outside").c_str(), 0755), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("outside/file"), "outside", 0644).ok());
  ASSERT_EQ(::symlink("../secret", Path("outside/leads-out").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("secret"), "beside", 0644).ok());
  ASSERT_EQ(::symlink("file", Path("outside/stays").c_str()), 0);
  Link("../outside", "relative");
  Link(Path("outside/file"), "absolute");
  Link("../../gone", "nowhere");
  ASSERT_TRUE(Take().ok());
  EXPECT_EQ(TargetOf(Copy("inside")), "real/inner");
  EXPECT_EQ(TargetOf(Copy("real/up")), "../inside");
  EXPECT_EQ(*ReadFile(Copy("absolute")), "outside");
  EXPECT_EQ(TargetOf(Copy("absolute")), "");
  EXPECT_EQ(*ReadFile(Copy("relative/file")), "outside");
  // Inside what a link led to, links are measured by where they really lie.
  EXPECT_EQ(TargetOf(Copy("relative/stays")), "file");
  EXPECT_EQ(*ReadFile(Copy("relative/leads-out")), "beside");
  EXPECT_EQ(TargetOf(Copy("nowhere")), "../../gone");
}

TEST_F(CodeCopyTest, ALinkToAFolderAroundItEndsWithAnError) {
  Link("..", "loop");
  CodeCopyOptions options;
  options.most_bytes = 1 << 20;
  absl::Status status = Take(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("loop/"));
}

TEST_F(CodeCopyTest, WhatIsNoCodeIsRefusedByName) {
  ASSERT_EQ(::mkfifo(Source("pipe").c_str(), 0644), 0);
  absl::Status status = Take();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Source("pipe") + " is a FIFO"));
  ASSERT_EQ(::unlink(Source("pipe").c_str()), 0);

  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  Source("sock").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(std::string(Take().message()), HasSubstr("sock is a socket"));
  ASSERT_EQ(::unlink(Source("sock").c_str()), 0);

  Link("/dev/null", "null");
  EXPECT_THAT(std::string(Take().message()), HasSubstr("null is a device"));
}

// What the daemon has open, or sees of itself, is not the user's.
TEST_F(CodeCopyTest, NothingComesFromProc) {
  UniqueFd secret(::memfd_create("secret", MFD_CLOEXEC));
  ASSERT_TRUE(WriteFully(secret.get(), "x", 1, "memfd").ok());
  for (const std::string& target :
       {absl::StrCat("/proc/self/fd/", secret.get()), std::string("/proc/self/maps"),
        std::string("/proc/self/exe"), std::string("/proc/sys")}) {
    Link(target, "link");
    EXPECT_FALSE(Take().ok()) << target;
    EXPECT_FALSE(Take({}, Owner{kNobody, kNobody, {}}).ok()) << target;
    ASSERT_EQ(::unlink(Source("link").c_str()), 0);
  }
}

TEST_F(CodeCopyTest, TheOwnersRightsAreAllThereIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can work with the rights of others";
  const Owner owner{kNobody, kNobody, {}};
  Write("app.py", "x");
  ASSERT_TRUE(Take({}, owner).ok());
  struct stat info {};
  ASSERT_EQ(::stat(Copy("app.py").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
  EXPECT_EQ(info.st_gid, kNobody);

  Write("private", "x", 0600);
  absl::Status status = Take({}, owner);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Source("private")));
  ASSERT_EQ(::unlink(Source("private").c_str()), 0);

  // A link does not help.
  ASSERT_TRUE(WriteFileAtomically(Path("roots"), "secret", 0600).ok());
  Link("../roots", "link");
  EXPECT_EQ(Take({}, owner).code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(::unlink(Source("link").c_str()), 0);

  // Groups count.
  Write("group", "x", 0640);
  ASSERT_EQ(::chown(Source("group").c_str(), 0, 4242), 0);
  EXPECT_EQ(Take({}, owner).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Take({}, Owner{kNobody, kNobody, {4242}}).ok());
  EXPECT_EQ(::geteuid(), 0u);
  EXPECT_TRUE(ReadFile(Path("roots")).ok());
}

TEST_F(CodeCopyTest, LimitsEndTheCopy) {
  Write("a", std::string(1000, 'x'));
  Write("b", std::string(1000, 'x'));
  CodeCopyOptions options;
  options.most_bytes = 1999;
  absl::Status status = Take(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("leave out"));
  options.most_bytes = 2000;
  EXPECT_TRUE(Take(options).ok());
  options.most_entries = 1;
  EXPECT_EQ(Take(options).code(), absl::StatusCode::kOutOfRange);
  std::atomic<bool> cancelled{true};
  options = {};
  options.cancelled = &cancelled;
  EXPECT_EQ(Take(options).code(), absl::StatusCode::kCancelled);
}

TEST_F(CodeCopyTest, AFileOrNothingIsNoFolder) {
  ASSERT_EQ(::rmdir(Source("").c_str()), 0);
  absl::Status status = Take();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Source("")));
  ASSERT_TRUE(WriteFileAtomically(Source(""), "x").ok());
  EXPECT_THAT(std::string(Take().message()), HasSubstr("is a file"));
}

}  // namespace
}  // namespace rekindle::functions
