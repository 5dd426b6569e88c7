#include "daemon/job_reaper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/subprocess.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kReapedWithin = absl::Seconds(30);

pid_t StartSleeper() {
  SubprocessOptions options;
  options.argv = {"sleep", "1000"};
  absl::StatusOr<Subprocess> child = Subprocess::Start(options);
  return child.ok() ? child->Release() : -1;
}

// A process that traces `pid` and looks at nothing of it; 0: it may not.
pid_t StartTracer(pid_t pid) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 0;
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char done = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
    if (::write(write_end.get(), &done, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char done = 'n';
  if (::read(read_end.get(), &done, 1) == 1 && done == 'y') return tracer;
  ::kill(tracer, SIGKILL);
  ::waitpid(tracer, nullptr, 0);
  return 0;
}

TEST(JobReaperTest, ATracersZombieKeepsNobodyWaiting) {
  JobReaper reaper;
  const pid_t job = StartSleeper(), other = StartSleeper();
  ASSERT_GT(job, 0);
  ASSERT_GT(other, 0);
  const pid_t tracer = StartTracer(job);
  if (tracer == 0) GTEST_SKIP() << "no process may be traced here";
  auto end = reaper.Adopt(job, [](const ExitState&) {});
  auto end_of_other = reaper.Adopt(other, [](const ExitState&) {});
  ASSERT_TRUE(end.ok() && end_of_other.ok());

  ASSERT_EQ(::kill(job, SIGTERM), 0);
  // The tracer is not asked to let the signal through: it is as a debugger at its prompt.
  EXPECT_FALSE((*end)->WaitFor(absl::Milliseconds(50)).has_value());
  ASSERT_EQ(::kill(job, SIGKILL), 0);
  const std::optional<ExitState> exit = (*end)->WaitFor(kReapedWithin);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->signal, SIGKILL);
  ASSERT_EQ(::kill(other, SIGTERM), 0);
  const std::optional<ExitState> exit_of_other = (*end_of_other)->WaitFor(kReapedWithin);
  ASSERT_TRUE(exit_of_other.has_value());
  EXPECT_EQ(exit_of_other->signal, SIGTERM);

  EXPECT_EQ(ReadProcessStat(job)->state, 'Z');
  ASSERT_EQ(::kill(tracer, SIGKILL), 0);
  // The reaper may be first: whose child it is it need not know.
  const pid_t waited = ::waitpid(tracer, nullptr, 0);
  EXPECT_TRUE(waited == tracer || (waited == -1 && errno == ECHILD)) << waited;
  const Deadline deadline(kReapedWithin);
  while (ReadProcessStat(job).ok() && !deadline.passed()) std::this_thread::yield();
  EXPECT_FALSE(ReadProcessStat(job).ok()) << "it is reaped once nobody traces it";
}

}  // namespace
}  // namespace rekindle::daemon
