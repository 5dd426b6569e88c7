#include "base/exit_events.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/pidfd.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

class ExitEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto events = ExitEvents::Listen();
    if (!events.ok()) GTEST_SKIP() << events.status();
    events_ = *std::move(events);
  }

  // The end of a child that another process would collect: it is only looked at from outside.
  template <typename Work>
  std::optional<ExitState> EndOf(const Work& work) {
    int go[2];
    EXPECT_EQ(::pipe(go), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      char byte;
      if (::read(go[0], &byte, 1) == 1) work();
      ::_exit(99);
    }
    EXPECT_TRUE(events_->Expect(child).ok());
    auto pidfd = OpenProcess(child);
    EXPECT_TRUE(pidfd.ok()) << pidfd.status();
    EXPECT_EQ(::write(go[1], "x", 1), 1);
    if (pidfd.ok()) AwaitExit(pidfd->get());
    std::optional<ExitState> end = events_->Take(child);
    ::waitpid(child, nullptr, 0);
    ::close(go[0]);
    ::close(go[1]);
    return end;
  }

  std::unique_ptr<ExitEvents> events_;
};

TEST_F(ExitEventsTest, TellsStatusAndSignal) {
  auto end = EndOf([] { ::_exit(7); });
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 7);
  EXPECT_EQ(end->signal, 0);
  end = EndOf([] { ::_exit(0); });
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok());
  end = EndOf([] { ::kill(::getpid(), SIGKILL); });
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGKILL);
}

TEST_F(ExitEventsTest, OfThreadsTheProcesssOwnEnd) {
  const auto end = EndOf([] {
    std::thread([] { ::usleep(1); }).join();
    std::thread([] { ::_exit(5); }).join();
  });
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 5);
}

TEST_F(ExitEventsTest, OthersAreNotKept) {
  ASSERT_TRUE(events_->Expect(::getpid()).ok());
  for (int i = 0; i < 300; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(3);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_FALSE(events_->Take(::getpid()).has_value());
  const auto end = EndOf([] { ::_exit(4); });
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 4);
}

// The kernel answers nobody in a PID namespace, but sends there what others have asked for.
TEST_F(ExitEventsTest, WithoutAnAnswerOthersEventsAreNotWaitedForWithoutEnd) {
  const pid_t busy = ::fork();
  if (busy == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      ::waitpid(child, nullptr, 0);
    }
  }
  const pid_t outside = ::fork();
  if (outside == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(2);
    const pid_t inside = ::fork();
    if (inside == 0) ::_exit(ExitEvents::Listen().ok() ? 1 : 0);
    int status = 0;
    ::waitpid(inside, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(outside, &status, 0), outside);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::kill(busy, SIGKILL);
  ::waitpid(busy, nullptr, 0);
}

TEST_F(ExitEventsTest, NobodyKnowsOfWhoWasNotExpected) { EXPECT_FALSE(events_->Take(1).has_value()); }

}  // namespace
}  // namespace rekindle
