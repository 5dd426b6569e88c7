#include "ckpt/death_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/test_descriptors.h"

namespace rekindle::ckpt {
namespace {

// A process of ours that does `work`, which tells when it has come so far.
class Child {
 public:
  template <typename Work>
  explicit Child(const Work& work) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      work([&] { [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1); });
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    auto opened = OpenProcess(pid_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) pidfd_ = *std::move(opened);
  }
  ~Child() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    Reap();
  }
  int Reap() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

void HaveThreads() {
  for (int i = 0; i < 3; ++i) std::thread([] { ::pause(); }).detach();
}

// As CRIU does, which then waits for the first.
void Seize(pid_t job) {
  const auto threads = ListDirectory(absl::StrCat("/proc/", job, "/task"));
  for (const std::string& name : *threads) {
    pid_t thread = 0;
    if (absl::SimpleAtoi(name, &thread)) ::ptrace(PTRACE_SEIZE, thread, 0, 0);
  }
}

void ExpectIsLeftAlone(const Child& criu, const DeathWatch& watch) {
  EXPECT_FALSE(AwaitExit(criu.pidfd(), DeathWatch::kMayGoOn + absl::Seconds(2)));
  EXPECT_FALSE(watch.ended_for().has_value());
}

TEST(DeathWatchTest, WhoWaitsForTheDeadIsEnded) {
  Child job([](auto ready) {
    HaveThreads();
    ready();
  });
  Child criu([&job](auto ready) {
    Seize(job.pid());
    ready();
    ::waitpid(job.pid(), nullptr, __WALL);
    for (;;) ::pause();
  });
  DeathWatch watch;
  ASSERT_TRUE(watch.Start().ok());
  watch.Guard(criu.pidfd(), criu.pid());
  ASSERT_EQ(::kill(job.pid(), SIGKILL), 0);
  EXPECT_TRUE(AwaitExit(criu.pidfd(), absl::Seconds(60)));
  EXPECT_TRUE(AwaitExit(job.pidfd(), absl::Seconds(60)));  // not before its threads are reaped
  EXPECT_EQ(watch.ended_for(), job.pid());
  EXPECT_EQ(WTERMSIG(criu.Reap()), SIGKILL);
}

// Born while the job is seized, and killed with its parent.
TEST(DeathWatchTest, AlsoForOneThatHasLeftTheTree) {
  int number[2];
  ASSERT_EQ(::pipe(number), 0);
  Child job([&number](auto ready) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      HaveThreads();
      ready();
      for (;;) ::pause();
    }
    if (::write(number[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
  });
  pid_t orphan = 0;
  ASSERT_EQ(::read(number[0], &orphan, sizeof orphan), static_cast<ssize_t>(sizeof orphan));
  const absl::StatusOr<UniqueFd> orphan_pidfd = OpenProcess(orphan);
  ASSERT_TRUE(orphan_pidfd.ok()) << orphan_pidfd.status();
  ASSERT_EQ(::kill(job.pid(), SIGKILL), 0);
  job.Reap();
  Child criu([orphan](auto ready) {
    Seize(orphan);
    ready();
    ::waitpid(orphan, nullptr, __WALL);
    for (;;) ::pause();
  });
  DeathWatch watch;
  ASSERT_TRUE(watch.Start().ok());
  watch.Guard(criu.pidfd(), criu.pid());
  ASSERT_EQ(::kill(orphan, SIGKILL), 0);
  EXPECT_TRUE(AwaitExit(criu.pidfd(), absl::Seconds(60)));
  EXPECT_TRUE(AwaitExit(orphan_pidfd->get(), absl::Seconds(60)));
  EXPECT_EQ(watch.ended_for(), orphan);
  for (const int end : number) ::close(end);
}

TEST(DeathWatchTest, WhoIsBusyWithOthersIsNotEnded) {
  Child job([](auto ready) {
    HaveThreads();
    ready();
  });
  Child criu([&job](auto ready) {
    Seize(job.pid());
    ready();
  });
  DeathWatch watch;
  ASSERT_TRUE(watch.Start().ok());
  watch.Guard(criu.pidfd(), criu.pid());
  ASSERT_EQ(::kill(job.pid(), SIGKILL), 0);
  ExpectIsLeftAlone(criu, watch);
  ::kill(criu.pid(), SIGKILL);  // lets it go
}

TEST(DeathWatchTest, WhoWasDeadBeforeSaysNothing) {
  Child job([](auto ready) {
    if (::fork() == 0) ::_exit(0);
    siginfo_t info;
    ::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);  // a zombie, and stays one
    ready();
  });
  Child criu([](auto ready) { ready(); });
  DeathWatch watch;
  ASSERT_TRUE(watch.Start().ok());
  watch.Guard(criu.pidfd(), criu.pid());
  ExpectIsLeftAlone(criu, watch);
}

// As the children of a job that starts programs all the time.
TEST(DeathWatchTest, WhoEndedBeforeItWasSeizedIsNotWaitedFor) {
  Child reaped([](auto ready) { ready(); }), zombie([](auto ready) { ready(); });
  Child criu([](auto ready) { ready(); });
  DeathWatch watch;
  ASSERT_TRUE(watch.Start().ok());
  watch.Guard(criu.pidfd(), criu.pid());
  ASSERT_EQ(::kill(reaped.pid(), SIGKILL), 0);
  ASSERT_EQ(::kill(zombie.pid(), SIGKILL), 0);
  reaped.Reap();
  ExpectIsLeftAlone(criu, watch);
}

TEST(DeathWatchTest, WithoutADescriptorForItItDoesNotStartAndEndsAllTheSame) {
  Child job([](auto ready) { ready(); });
  DeathWatch watch;
  const FewDescriptorsLeft none;
  EXPECT_TRUE(absl::IsResourceExhausted(watch.Start()));
}

}  // namespace
}  // namespace rekindle::ckpt
