#include "base/pidfd.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "base/test_child.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

UniqueFd Open(const TestChild& child) { return OpenProcess(child.pid()).value_or(UniqueFd()); }

TEST(Pidfd, WhoIsThereIsOpened) {
  const TestChild child;
  EXPECT_TRUE(Open(child).valid());
  child.Kill();
  ASSERT_TRUE(child.AwaitEnd());
  EXPECT_TRUE(Open(child).valid()) << "it is a zombie";
}

TEST(Pidfd, WhoIsNotThereIsNotFound) {
  TestChild child;
  const pid_t pid = child.pid();
  child.Kill();
  child.Reap();
  for (const pid_t none : {pid, 0, -1})
    EXPECT_EQ(OpenProcess(none).status().code(), absl::StatusCode::kNotFound) << none;
}

TEST(Pidfd, ANumberThatIsAGroupsAndSessionsAloneIsNoProcess) {
  pid_t member = 0;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  TestChild leader([&] {
    if (::setsid() < 0) return false;
    member = ::fork();
    if (member == 0) {
      for (;;) ::pause();
    }
    return member > 0 && ::write(ends[1], &member, sizeof member) == sizeof member;
  });
  ASSERT_TRUE(leader.prepared());
  ASSERT_EQ(::read(ends[0], &member, sizeof member), static_cast<ssize_t>(sizeof member));
  const pid_t number = leader.pid();
  leader.Kill();
  leader.Reap();
  EXPECT_EQ(::getsid(member), number);
  EXPECT_EQ(OpenProcess(number).status().code(), absl::StatusCode::kNotFound);
  ::kill(member, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Pidfd, NorIsAThreads) {
  std::thread thread([] { EXPECT_EQ(OpenProcess(::gettid()).status().code(), absl::StatusCode::kNotFound); });
  thread.join();
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

// Where the kernel tells at all.
TEST(Pidfd, HowItEndedIsKnownOnceItIsReaped) {
  TestChild killed;
  const UniqueFd pidfd = Open(killed);
  killed.Kill();
  killed.Reap();
  const std::optional<ExitState> death = ExitOfEnded(pidfd.get());
  if (!death) GTEST_SKIP() << "this kernel does not tell";
  EXPECT_EQ(death->signal, SIGKILL);

  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(7);
  const UniqueFd exited = OpenProcess(pid).value_or(UniqueFd());  // a zombie at worst
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  const std::optional<ExitState> exit = ExitOfEnded(exited.get());
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 7);
  EXPECT_EQ(exit->signal, 0);
}

// On all kernels.
TEST(Pidfd, HowAZombieEndedIsKnown) {
  for (const int code : {0, 7}) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(code);
    const UniqueFd zombie = OpenProcess(pid).value_or(UniqueFd());
    ASSERT_TRUE(AwaitExit(zombie.get()));
    const std::optional<ExitState> exit = ExitOfEnded(zombie.get());
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    ASSERT_TRUE(exit);
    EXPECT_EQ(exit->code, code);
    EXPECT_EQ(exit->signal, 0);
  }
  TestChild killed;
  const UniqueFd pidfd = Open(killed);
  KillAndAwaitExit(pidfd.get());
  const std::optional<ExitState> death = ExitOfEnded(pidfd.get());
  ASSERT_TRUE(death);
  EXPECT_EQ(death->signal, SIGKILL);
}

TEST(Pidfd, WhatIsNoProcessIsNotWaitedFor) {
  EXPECT_FALSE(AwaitExit(-1));
  KillAndAwaitExit(-1);
  EXPECT_FALSE(SendSignal(STDOUT_FILENO, 0));
}

}  // namespace
}  // namespace rekindle
