// The library that is loaded into CRIU, in a process that waits for a task it traces, which never stops.
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "ckpt/give_up.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

#ifdef __x86_64__

enum WaitEnd : int { kFound, kTimedOut, kInterrupted, kOther };

struct Waiting {
  pid_t waiter = 0, task = 0;
};

[[noreturn]] void TraceAndWait(int told) {
  using Wait = pid_t (*)(pid_t, int*, int, rusage*);
  const auto wait = reinterpret_cast<Wait>(::dlsym(::dlopen(REKINDLE_CRIU_PRELOAD, RTLD_NOW), "wait4"));
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};  // system calls are not begun anew
  ::sigaction(SIGALRM, &nothing, nullptr);
  Waiting waiting{::getpid(), ::fork()};
  if (waiting.task == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != waiting.waiter) ::_exit(0);  // it had died before
    for (;;) ::pause();
  }
  if (wait == nullptr || ::ptrace(PTRACE_SEIZE, waiting.task, nullptr, nullptr) != 0 ||
      ::write(told, &waiting, sizeof waiting) != sizeof waiting) {
    ::_exit(kOther);
  }
  int status;
  const pid_t found = wait(waiting.task, &status, __WALL, nullptr);
  ::_exit(found == waiting.task ? kFound
          : errno == ETIMEDOUT  ? kTimedOut
          : errno == EINTR      ? kInterrupted
                                : kOther);
}

// Returns when it can be asked to give up.
Waiting Begin(bool with_parent_between, pid_t* parent = nullptr) {
  int ends[2];
  Waiting waiting;
  if (::pipe(ends) != 0) return waiting;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!with_parent_between || ::fork() == 0) TraceAndWait(ends[1]);
    for (;;) ::pause();
  }
  if (parent != nullptr) *parent = child;
  EXPECT_EQ(::read(ends[0], &waiting, sizeof waiting), static_cast<ssize_t>(sizeof waiting));
  for (const int end : ends) ::close(end);
  for (uint64_t handled = 0; (handled >> (GIVE_UP_SIGNAL - 1) & 1) == 0;) {
    const auto status = ReadFile(absl::StrCat("/proc/", waiting.waiter, "/status"));
    if (!status.ok() || !absl::SimpleHexAtoi(StatusField(*status, "SigCgt"), &handled)) break;
  }
  return waiting;
}

int EndOf(pid_t waiter) {
  int status = -1;
  EXPECT_EQ(::waitpid(waiter, &status, 0), waiter);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class BoundedWaitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef ABSL_HAVE_THREAD_SANITIZER
    GTEST_SKIP() << "ThreadSanitizer puts off what handles a signal until a call that it knows";
#endif
  }
};

TEST_F(BoundedWaitsTest, WhoIsAskedToGiveUpDoesNotWaitWithoutEnd) {
  const Waiting waiting = Begin(false);
  EXPECT_EQ(::kill(waiting.waiter, GIVE_UP_SIGNAL), 0);
  EXPECT_EQ(EndOf(waiting.waiter), kTimedOut);
}

TEST_F(BoundedWaitsTest, NorDoesOneWhoseParentHasDied) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  pid_t parent = 0;
  const Waiting waiting = Begin(true, &parent);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_EQ(EndOf(waiting.waiter), kTimedOut);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

TEST_F(BoundedWaitsTest, WhatHappensMeanwhileIsTold) {
  const Waiting waiting = Begin(false);
  EXPECT_EQ(::kill(waiting.waiter, GIVE_UP_SIGNAL), 0);
  EXPECT_EQ(::kill(waiting.task, SIGKILL), 0);
  EXPECT_EQ(EndOf(waiting.waiter), kFound);
}

// CRIU's own, by which it stops waiting for threads to stop.
TEST_F(BoundedWaitsTest, AnotherSignalInterruptsItAsEver) {
  const Waiting waiting = Begin(false);
  // One that comes together with the clock's is not seen: CRIU sends itself the next.
  siginfo_t ended{};
  while (ended.si_pid == 0) {
    ::kill(waiting.waiter, SIGALRM);
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(waiting.waiter), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  }
  EXPECT_EQ(EndOf(waiting.waiter), kInterrupted);
}

#else

TEST(BoundedWaitsTest, WhoIsAskedToGiveUpDoesNotWaitWithoutEnd) { GTEST_SKIP() << "x86-64 only"; }

#endif

}  // namespace
}  // namespace rekindle::ckpt
