#include "restore/opened_files_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/test_child.h"
#include "base/test_user.h"

namespace rekindle::restore {
namespace {

using ::testing::HasSubstr;

// The processes are root's, as those of a restored job are until they run.
class OpenedFilesCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    for (const char* name : {"theirs", "closed"}) ASSERT_EQ(::mkdir(Path(name).c_str(), 0755), 0);
    Write("theirs/log", 0600, kNobody);
    Write("closed/log", 0666, 0);  // may be written by everybody who gets there
    Write("secret", 0600, 0);
    Write("readable", 0644, 0);
    ASSERT_EQ(::chmod(Path("closed").c_str(), 0700), 0);
    ASSERT_EQ(::chown(Path("theirs").c_str(), kNobody, kNobody), 0);
    // The test's own program and libraries lie who knows where, and its output goes there too.
    TestChild like_the_others;
    ASSERT_TRUE(like_the_others.Stop());
    auto own = FilesOpenedBy(like_the_others.pid(), OpenedFilesOf::kMappingsToo);
    ASSERT_TRUE(own.ok()) << own.status();
    for (const OpenedFile& file : *own) Record(file.identity, file.access);
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  void Write(const std::string& name, mode_t mode, uid_t owner) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), "text").ok());
    ASSERT_EQ(::chown(Path(name).c_str(), owner, owner), 0);
    ASSERT_EQ(::chmod(Path(name).c_str(), mode), 0);
  }

  void Record(const InodeIdentity& identity, int access) {
    v1::OpenedInode* file = manifest_.add_opened();
    file->set_device(identity.device);
    file->set_inode(identity.inode);
    file->set_born_ns(identity.born_ns);
    file->set_access(static_cast<uint32_t>(access));
  }
  void RecordFile(const std::string& name, int access) {
    auto fd = OpenFile(Path(name), O_PATH);
    ASSERT_TRUE(fd.ok());
    Record(IdentityOf(fd->get()).value(), access);
  }

  absl::Status Check(const std::function<bool()>& prepare) {
    TestChild child(prepare);
    if (!child.prepared() || !child.Stop()) return absl::InternalError("the child is not prepared");
    return CheckOpenedFiles({manifest_, user_, {child.pid()}, "/", given_, began_unix_ns_, "", own_folders_});
  }
  absl::Status CheckOpen(const std::string& name, int flags) {
    return Check([&] { return ::open(Path(name).c_str(), flags) >= 0; });
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rekindle-opened.").value();
  v1::JobManifest manifest_;
  Owner user_{kNobody, kNobody, {}};
  std::vector<int> given_;
  std::vector<std::string> own_folders_;
  int64_t began_unix_ns_ = INT64_MAX;
};

TEST_F(OpenedFilesCheckTest, WhatTheUserMayOpen) {
  EXPECT_EQ(CheckOpen("theirs/log", O_RDWR), absl::OkStatus());
  EXPECT_EQ(CheckOpen("readable", O_RDONLY), absl::OkStatus());
  EXPECT_EQ(CheckOpen("theirs", O_RDONLY | O_DIRECTORY), absl::OkStatus());
  EXPECT_EQ(CheckOpen("../../proc/meminfo", O_RDONLY), absl::OkStatus());
  EXPECT_EQ(Check([&] { return ::chdir(Path("theirs").c_str()) == 0; }), absl::OkStatus());
  EXPECT_EQ(Check([] { return ::open("/proc/self/maps", O_RDONLY) >= 0; }), absl::OkStatus());
  EXPECT_EQ(Check([] { return ::memfd_create("m", 0) >= 0; }), absl::OkStatus());
}

TEST_F(OpenedFilesCheckTest, WhatLiesOnAFileSystemOfItsOwn) {
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDWR)));
  own_folders_ = {"/proc"};
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDWR)));
  own_folders_ = {folder_.path()};
  EXPECT_EQ(CheckOpen("secret", O_RDWR), absl::OkStatus());
  own_folders_ = {Path("nowhere")};
  EXPECT_FALSE(CheckOpen("readable", O_RDONLY).ok());
}

TEST_F(OpenedFilesCheckTest, AFolderThatWasReplacedByALink) {
  // What it was: theirs/log. What CRIU opens under that name now is root's.
  ASSERT_EQ(::rename(Path("theirs").c_str(), Path("moved").c_str()), 0);
  ASSERT_EQ(::symlink("closed", Path("theirs").c_str()), 0);
  const absl::Status refused = CheckOpen("theirs/log", O_RDWR);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Path("closed/log")));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("replaced by a link"));
}

TEST_F(OpenedFilesCheckTest, WhatIsNotTheUsersToOpenSo) {
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("readable", O_RDWR)));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("readable", O_WRONLY | O_APPEND)));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDONLY)));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("closed", O_RDONLY | O_DIRECTORY)));
  EXPECT_TRUE(absl::IsPermissionDenied(Check([&] { return ::chdir(Path("closed").c_str()) == 0; })));
  EXPECT_TRUE(
      absl::IsPermissionDenied(CheckOpen(absl::StrCat("../../proc/", ::getpid(), "/environ"), O_RDONLY)));
}

// As CRIU has it of a job with mounts of its own.
TEST_F(OpenedFilesCheckTest, ProcThatHangsNowhere) {
  EXPECT_EQ(Check([] { return ::open_tree(AT_FDCWD, "/proc", OPEN_TREE_CLONE) >= 0; }), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(
      Check([this] { return ::open_tree(AT_FDCWD, Path("closed").c_str(), OPEN_TREE_CLONE) >= 0; })));
}

TEST_F(OpenedFilesCheckTest, WhatIsMapped) {
  const auto map = [&](const std::string& name, int flags, int protection, int kind) {
    const int fd = ::open(Path(name).c_str(), flags);
    const bool mapped = ::mmap(nullptr, 4, protection, kind, fd, 0) != MAP_FAILED;
    return ::close(fd) == 0 && mapped;
  };
  EXPECT_EQ(Check([&] { return map("readable", O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE); }),
            absl::OkStatus());
  EXPECT_EQ(Check([&] { return map("readable", O_RDONLY, PROT_READ, MAP_SHARED); }), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(
      Check([&] { return map("readable", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED); })));
  EXPECT_TRUE(
      absl::IsPermissionDenied(Check([&] { return map("secret", O_RDONLY, PROT_READ, MAP_PRIVATE); })));
}

TEST_F(OpenedFilesCheckTest, WhatTheJobHadBefore) {
  RecordFile("secret", R_OK | W_OK);
  EXPECT_EQ(CheckOpen("secret", O_RDWR), absl::OkStatus());
  // Another one has its name, and may have its number.
  ASSERT_EQ(::unlink(Path("secret").c_str()), 0);
  Write("secret", 0600, 0);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDWR)));
}

TEST_F(OpenedFilesCheckTest, WhatTheJobOnlyReadItDoesNotGetForWriting) {
  // It had "secret" and another file, in whose place there is a link to it now.
  RecordFile("secret", R_OK);
  EXPECT_EQ(CheckOpen("secret", O_RDONLY), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDWR)));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_WRONLY)));
  RecordFile("closed", X_OK);
  EXPECT_EQ(Check([&] { return ::chdir(Path("closed").c_str()) == 0; }), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("closed", O_RDONLY | O_DIRECTORY)));
}

TEST_F(OpenedFilesCheckTest, WhatItWasGiven) {
  auto log = OpenFile(Path("secret"), O_WRONLY | O_APPEND);
  ASSERT_TRUE(log.ok());
  given_ = {log->get()};
  EXPECT_EQ(Check([&] { return ::dup(log->get()) >= 0; }), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("secret", O_RDONLY))) << "it was given for writing";
}

TEST_F(OpenedFilesCheckTest, WhatHasNoNameAnyMore) {
  const auto open_and_remove = [&](const char* name, int flags) {
    return ::open(Path(name).c_str(), flags) >= 0 && ::unlink(Path(name).c_str()) == 0;
  };
  EXPECT_EQ(Check([&] { return open_and_remove("theirs/log", O_RDWR); }), absl::OkStatus());
  // A library that was replaced while the job ran.
  EXPECT_EQ(Check([&] { return open_and_remove("readable", O_RDONLY); }), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(Check([&] { return open_and_remove("secret", O_RDWR); })));
  // What CRIU has made itself is what the image says that it had.
  began_unix_ns_ = UnixNanos() - 1'000'000'000;
  Write("secret", 0600, 0);
  EXPECT_EQ(Check([&] { return open_and_remove("secret", O_RDWR); }), absl::OkStatus());
}

TEST_F(OpenedFilesCheckTest, MemoryHasNoPath) {
  EXPECT_EQ(Check([] {
              const int memory = ::memfd_create("closed", 0);
              return memory >= 0 && ::fchmod(memory, 0) == 0 &&
                     ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) !=
                         MAP_FAILED;
            }),
            absl::OkStatus());
}

TEST_F(OpenedFilesCheckTest, FurtherGroupsCount) {
  Write("groups", 0060, 0);
  ASSERT_EQ(::chown(Path("groups").c_str(), 0, 12345), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOpen("groups", O_RDWR)));
  user_.groups = {12345};
  EXPECT_EQ(CheckOpen("groups", O_RDWR), absl::OkStatus());
}

TEST_F(OpenedFilesCheckTest, WhatCanNotBeLookedAtIsRefused) {
  TestChild child;
  child.Kill();
  ASSERT_TRUE(child.AwaitEnd());
  EXPECT_FALSE(CheckOpenedFiles({manifest_, user_, {child.pid()}, "/", {}, INT64_MAX, ""}).ok());
}

}  // namespace
}  // namespace rekindle::restore
