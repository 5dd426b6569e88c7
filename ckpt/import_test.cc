// What stands in a folder that is imported: only its own regular files are read.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "base/file.h"
#include "ckpt/capture.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using store::StatusOf;
using ::testing::HasSubstr;

class ImportTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    ASSERT_EQ(::mkdir(images().c_str(), 0700), 0);
    RK_ASSERT_OK(WriteFileAtomically(images() + "/inventory.img", criu::MakeInventory()));
    RK_ASSERT_OK(WriteFileAtomically(folder_->path() + "/secret", "of another"));
  }
  void TearDown() override { EXPECT_TRUE(store_->List()->empty()); }

  std::string images() const { return folder_->path() + "/images"; }
  absl::Status Import(const std::atomic<bool>* cancel = nullptr) {
    return ImportCriuDirectory(*store_, images(), "in:1", "", 0, nullptr, cancel).status();
  }
  void ExpectRefused(const std::string& name) {
    const absl::Status status = Import();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("no regular file"));
    ASSERT_EQ(::unlink((images() + "/" + name).c_str()), 0);
  }
};

TEST_F(ImportTest, WhatIsNoFolder) {
  for (const std::string& path : {std::string("/dev/null"), folder_->path() + "/secret/below"}) {
    const absl::Status status = ImportCriuDirectory(*store_, path, "in:1", "", 0, nullptr, nullptr).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no folder"));
  }
}

TEST_F(ImportTest, LinksAreNotFollowed) {
  for (const char* name : {"core-1.img", "pages-1.img"}) {
    ASSERT_EQ(::symlink("../secret", (images() + "/" + name).c_str()), 0);
    ExpectRefused(name);
  }
}

TEST_F(ImportTest, APipeKeepsNobodyWaiting) {
  for (const char* name : {"core-1.img", "pages-1.img"}) {
    ASSERT_EQ(::mkfifo((images() + "/" + name).c_str(), 0600), 0);
    ExpectRefused(name);
  }
}

TEST_F(ImportTest, WhatIsNoImageIsNotLookedAt) {
  ASSERT_EQ(::mkfifo((images() + "/dump.log").c_str(), 0600), 0);
  const absl::Status status = Import();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pstree.img"));
}

TEST_F(ImportTest, CanBeCancelled) {
  const std::atomic<bool> cancel{true};
  EXPECT_TRUE(absl::IsCancelled(Import(&cancel)));
}

// A hole of 8 GiB: it takes longer to read than a thread to start.
TEST_F(ImportTest, CanBeCancelledInTheMiddleOfAFile) {
  std::atomic<bool> cancel{false};
  const std::string large = images() + "/core-1.img";
  const UniqueFd file(::open(large.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), off_t{1} << 33), 0);
  std::thread canceller([&] { cancel = true; });
  EXPECT_TRUE(absl::IsCancelled(Import(&cancel)));
  canceller.join();
}

}  // namespace
}  // namespace rekindle::ckpt
