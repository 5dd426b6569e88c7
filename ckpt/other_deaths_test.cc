// The library that is loaded into CRIU, in a process that traces as CRIU does.
#include <dlfcn.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

#ifdef __x86_64__

using Wait = pid_t (*)(pid_t, int*, int, rusage*);
using Trace = long (*)(__ptrace_request, ...);

// A child that makes system calls without end, traced and stopped.
pid_t StartTask(Trace trace) {
  const pid_t task = ::fork();
  if (task == 0) {
    for (;;) ::getppid();
  }
  int status;
  if (trace(PTRACE_SEIZE, task, nullptr, nullptr) != 0 ||
      trace(PTRACE_INTERRUPT, task, nullptr, nullptr) != 0 || ::waitpid(task, &status, __WALL) != task ||
      !WIFSTOPPED(status)) {
    ::_exit(3);
  }
  return task;
}

// Which of the two is told of first, after `killed` of them has died: 0 that which was let run, 1 the other.
int ToldFirst(int killed) {
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    void* library = ::dlopen(REKINDLE_CRIU_PRELOAD, RTLD_NOW);
    const auto wait = reinterpret_cast<Wait>(::dlsym(library, "wait4"));
    const auto trace = reinterpret_cast<Trace>(::dlsym(library, "ptrace"));
    if (wait == nullptr || trace == nullptr) ::_exit(2);
    const pid_t tasks[2] = {StartTask(trace), StartTask(trace)};
    ::kill(tasks[killed], SIGKILL);
    siginfo_t dead;
    if (::waitid(P_PID, static_cast<id_t>(tasks[killed]), &dead, WEXITED | WNOWAIT) != 0) ::_exit(3);
    trace(PTRACE_SYSCALL, tasks[0], nullptr, nullptr);
    int status;
    const pid_t told = wait(-1, &status, __WALL, nullptr);
    const bool as_it_is = (killed == 0) == (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (const pid_t task : tasks) ::kill(task, SIGKILL);
    ::_exit(!as_it_is ? 4 : told == tasks[0] ? 0 : told == tasks[1] ? 1 : 5);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(tracer, &status, 0), tracer);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(OtherDeathsTest, WhoWasLetRunIsToldOfAndNotTheDeathOfAnother) {
  EXPECT_EQ(ToldFirst(1), 0);
  EXPECT_EQ(ToldFirst(0), 0) << "its own death";
}

#else

TEST(OtherDeathsTest, WhoWasLetRunIsToldOfAndNotTheDeathOfAnother) { GTEST_SKIP() << "x86-64 only"; }

#endif

}  // namespace
}  // namespace rekindle::ckpt
