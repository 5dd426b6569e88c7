#include "ckpt/uninterruptible_waits.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_child.h"

namespace rekindle::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kMoment = absl::Milliseconds(50), kLong = absl::Seconds(60);

// A child whose vfork() child waits for somebody who writes to a pipe, before it begins its program.
class VforkTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::mkfifo(pipe_.c_str(), 0600), 0);
    job_ = ::fork();
    ASSERT_GE(job_, 0);
    if (job_ == 0) {
      posix_spawn_file_actions_t actions;
      ::posix_spawn_file_actions_init(&actions);
      ::posix_spawn_file_actions_addopen(&actions, 0, pipe_.c_str(), O_RDONLY, 0);
      char* const argv[] = {const_cast<char*>("true"), nullptr};
      pid_t spawned = 0;
      if (::posix_spawn(&spawned, "/bin/true", &actions, nullptr, argv, environ) != 0) ::_exit(1);
      ::waitpid(spawned, nullptr, 0);
      ::pause();
    }
    while (ReadProcessStat(job_)->state != 'D') absl::SleepFor(absl::Milliseconds(1));
  }
  void TearDown() override {
    if (!released_) Release();
    ::kill(job_, SIGKILL);
    ::waitpid(job_, nullptr, 0);
  }
  void Release() {
    released_ = true;
    UniqueFd writer(::open(pipe_.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(writer.valid());
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_waits_test.").value();
  const std::string pipe_ = folder_.path() + "/pipe";
  pid_t job_ = -1;
  bool released_ = false;
};

TEST_F(VforkTest, IsNamedAfterAWhile) {
  const absl::Status status = AwaitInterruptible(job_, kMoment, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("capturing process ", job_)), HasSubstr("state D"),
                    HasSubstr("runs on"), HasSubstr("vfork()")));
  EXPECT_THAT(DescribeUninterruptibleWait(job_), HasSubstr(absl::StrCat("thread ", job_, " (")));
}

TEST_F(VforkTest, IsWaitedFor) {
  std::thread release([this] { Release(); });
  EXPECT_TRUE(AwaitInterruptible(job_, kLong, nullptr).ok());
  release.join();
  EXPECT_EQ(DescribeUninterruptibleWait(job_), "");
}

TEST_F(VforkTest, IsNoLongerWaitedForWhenCancelled) {
  const std::atomic<bool> cancelled{true};
  EXPECT_TRUE(absl::IsCancelled(AwaitInterruptible(job_, kLong, &cancelled)));
}

TEST(UninterruptibleWaitsTest, OthersAreNot) {
  TestChild job;
  ASSERT_TRUE(job.prepared());
  EXPECT_TRUE(AwaitInterruptible(job.pid(), absl::ZeroDuration(), nullptr).ok());
  EXPECT_TRUE(AwaitInterruptible(999999999, absl::ZeroDuration(), nullptr).ok());
}

}  // namespace
}  // namespace rekindle::ckpt
