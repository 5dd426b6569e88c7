#include "base/open_in_root.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>

#include "base/file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::HasSubstr;

class OpenInRootTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "open_in_root_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    root_ = folder_->path() + "/root";
    ASSERT_EQ(::mkdir(root_.c_str(), 0700), 0);
    ASSERT_EQ(::mkdir((root_ + "/d").c_str(), 0700), 0);
    ASSERT_TRUE(WriteFileAtomically(folder_->path() + "/outside", "secret").ok());
    ASSERT_TRUE(WriteFileAtomically(root_ + "/d/file", "content").ok());
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string root_;
};

TEST_F(OpenInRootTest, AFileIsFoundAndRead) {
  auto place = OpenInRoot(root_, "/d/file");
  ASSERT_TRUE(place.ok()) << place.status();
  auto file = OpenFileAt(place->get());
  ASSERT_TRUE(file.ok()) << file.status();
  char content[8] = {};
  ASSERT_EQ(::read(file->get(), content, sizeof content), 7);
  EXPECT_STREQ(content, "content");
}

TEST_F(OpenInRootTest, LinksAreNotFollowed) {
  ASSERT_EQ(::symlink("d", (root_ + "/folder").c_str()), 0);
  ASSERT_EQ(::symlink("file", (root_ + "/d/link").c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(OpenInRoot(root_, "/folder/file").status()));
  auto link = OpenInRoot(root_, "/d/link");
  ASSERT_TRUE(link.ok()) << link.status();
  char target[16] = {};
  EXPECT_EQ(::readlinkat(link->get(), "", target, sizeof target), 4);
  EXPECT_STREQ(target, "file");
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenFileAt(link->get()).status()));
}

TEST_F(OpenInRootTest, NoWayLeadsOut) {
  EXPECT_TRUE(absl::IsNotFound(OpenInRoot(root_, "/../outside").status()));
  EXPECT_TRUE(absl::IsNotFound(OpenInRoot(root_, folder_->path() + "/outside").status()));
  EXPECT_THAT(std::string(OpenInRoot(root_, "d/file").status().message()), HasSubstr("not an absolute name"));
}

TEST_F(OpenInRootTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  auto place = OpenInRoot(root_, "/pipe");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenFileAt(place->get()).status()));
}

TEST_F(OpenInRootTest, WhatLiesBeneathAFolder) {
  const UniqueFd folder(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(OpenBeneath(folder.get(), "d/file").ok());
  ASSERT_EQ(::symlink("d", (root_ + "/folder").c_str()), 0);
  for (const std::string& name : {std::string("folder/file"), std::string("../outside"),
                                  folder_->path() + "/outside", std::string("absent")}) {
    EXPECT_TRUE(absl::IsNotFound(OpenBeneath(folder.get(), name).status())) << name;
  }
}

// As in a container, whose /proc does not have us.
TEST_F(OpenInRootTest, AFileIsOpenedWithoutOurProc) {
  auto place = OpenInRoot(root_, "/d/file");
  ASSERT_TRUE(place.ok()) << place.status();
  RememberOwnDescriptors();
  absl::Status entered, opened;
  std::thread elsewhere([&] {
    if (::unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) {
      entered = ErrnoStatus(errno, "mounting");
      return;
    }
    opened = OpenFileAt(place->get()).status();
  });
  elsewhere.join();
  if (!entered.ok()) GTEST_SKIP() << "mounts need root: " << entered.message();
  EXPECT_TRUE(opened.ok()) << opened;
}

}  // namespace
}  // namespace rekindle
