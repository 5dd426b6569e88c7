#include "base/pidfd.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/test_child.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

UniqueFd Open(const TestChild& child) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid(), 0)));
}

TEST(Pidfd, WhoRunsIsWaitedForInVain) {
  const TestChild child;
  const UniqueFd pidfd = Open(child);
  EXPECT_FALSE(AwaitExit(pidfd.get(), absl::ZeroDuration()));
  EXPECT_FALSE(AwaitExit(pidfd.get(), absl::Milliseconds(1)));
  EXPECT_TRUE(SendSignal(pidfd.get(), 0));
}

TEST(Pidfd, WhoIsKilledHasEnded) {
  TestChild child;
  const UniqueFd pidfd = Open(child);
  KillAndAwaitExit(pidfd.get());
  EXPECT_TRUE(AwaitExit(pidfd.get(), absl::ZeroDuration())) << "it is a zombie";
  EXPECT_TRUE(child.AwaitEnd());
  child.Reap();
  EXPECT_TRUE(AwaitExit(pidfd.get()));
  EXPECT_FALSE(SendSignal(pidfd.get(), SIGKILL));
  EXPECT_EQ(errno, ESRCH);
  KillAndAwaitExit(pidfd.get());
}

TEST(Pidfd, WhatIsNoProcessIsNotWaitedFor) {
  EXPECT_FALSE(AwaitExit(-1));
  KillAndAwaitExit(-1);
  EXPECT_FALSE(SendSignal(STDOUT_FILENO, 0));
}

}  // namespace
}  // namespace rekindle
