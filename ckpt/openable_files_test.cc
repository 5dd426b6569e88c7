#include "ckpt/openable_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "base/file.h"
#include "base/file_rights.h"
#include "base/test_user.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// This process is the job, which has its files open as root; who restores it has the rights of nobody.
class OpenableFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    const absl::Status own = Check();
    if (!own.ok()) GTEST_SKIP() << "nobody may not reach what this test itself has open: " << own;
    auto made = TemporaryDirectory::Make("/tmp", "openable-files-test.");
    ASSERT_TRUE(made.ok()) << made.status();
    folder_.emplace(*std::move(made));
    Allow("", 0755);
    ASSERT_TRUE(MakeDirectories(Path("/home"), 0755).ok());
    Allow("/home", 0755);
    ASSERT_TRUE(WriteFileAtomically(Path("/home/file"), "content").ok());
  }
  std::string Path(const std::string& inside) const { return folder_->path() + inside; }
  void Allow(const std::string& name, mode_t mode) { ASSERT_EQ(::chmod(Path(name).c_str(), mode), 0); }
  UniqueFd Open(int flags) { return UniqueFd(::open(Path("/home/file").c_str(), flags | O_CLOEXEC)); }
  // What this process has of others' does not count.
  static absl::Status Check() {
    const absl::Status mine = CheckFilesCanBeOpenedAgain({::getpid()});
    EXPECT_TRUE(mine.ok()) << mine;
    return WithFileRightsOf({kNobody, kNobody, {}}, [] { return CheckFilesCanBeOpenedAgain({::getpid()}); });
  }
  void ExpectRefused(const char* words) {
    const absl::Status refused = Check();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(Path("/home/file")), HasSubstr(words)));
  }
  void ExpectNotRefused() {
    const absl::Status status = Check();
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr(folder_->path())));
  }

  std::optional<TemporaryDirectory> folder_;
};

TEST_F(OpenableFilesTest, ForWhatTheyAreOpen) {
  Allow("/home/file", 0644);
  UniqueFd file = Open(O_RDONLY);
  ExpectNotRefused();
  file = Open(O_WRONLY | O_APPEND);
  ExpectRefused("open for writing");
  file = Open(O_RDWR);
  ExpectRefused("open for writing");
  Allow("/home/file", 0666);
  ExpectNotRefused();
  Allow("/home/file", 0600);
  file = Open(O_RDONLY);
  ExpectRefused("CAP_DAC_OVERRIDE");
}

TEST_F(OpenableFilesTest, FoldersOnTheWay) {
  Allow("/home/file", 0666);
  UniqueFd file = Open(O_RDWR);
  Allow("/home", 0700);
  ExpectRefused("Permission denied");
  Allow("/home", 0711);
  ExpectNotRefused();
}

TEST_F(OpenableFilesTest, Mappings) {
  Allow("/home/file", 0644);
  UniqueFd file = Open(O_RDWR);
  void* const shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(shared, MAP_FAILED);
  file.Reset();
  ExpectRefused("open for writing or mapped");
  ::munmap(shared, 4096);
  file = Open(O_RDONLY);
  void* const own = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  ASSERT_NE(own, MAP_FAILED);
  file.Reset();
  ExpectNotRefused();
  Allow("/home/file", 0600);
  ExpectRefused("mapped");
  ::munmap(own, 4096);
}

TEST_F(OpenableFilesTest, WhatHasAnotherNameByNowIsNotLookedAt) {
  Allow("/home/file", 0600);
  UniqueFd file = Open(O_RDWR);
  ASSERT_EQ(::unlink(Path("/home/file").c_str()), 0);
  ExpectNotRefused();
  // Of that name there is another now.
  ASSERT_TRUE(WriteFileAtomically(Path("/home/file"), "another's").ok());
  Allow("/home/file", 0600);
  ExpectNotRefused();
}

}  // namespace
}  // namespace rekindle::ckpt
