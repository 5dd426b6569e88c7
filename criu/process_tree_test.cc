#include "criu/process_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "base/test_descriptors.h"

namespace rekindle::criu {
namespace {

bool IsSubreaper() {
  int value = 0;
  return ::prctl(PR_GET_CHILD_SUBREAPER, &value) == 0 && value != 0;
}

absl::StatusOr<Subprocess> StartShell(const std::string& script) {
  SubprocessOptions options;
  options.argv = {"sh", "-c", script};
  return Subprocess::Start(options);
}

// A process whose parent has ended.
pid_t MakeOrphan() {
  absl::StatusOr<CommandResult> done =
      RunCommand({"sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"}, absl::Seconds(30));
  return done.ok() ? std::atoi(done->output.c_str()) : -1;
}

// Until it is no zombie either: nothing tells when it is reaped.
bool AwaitReaped(pid_t pid) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!absl::IsNotFound(ReadProcessStat(pid).status())) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(TemporarySubreaperTest, TheLastUseEndsIt) {
  ASSERT_FALSE(IsSubreaper());
  std::optional<TemporarySubreaper> first, second;
  first.emplace();
  second.emplace();
  first.reset();
  EXPECT_TRUE(IsSubreaper());
  const pid_t orphan = MakeOrphan();
  ASSERT_GT(orphan, 0);
  EXPECT_EQ(ReadProcessStat(orphan)->parent, ::getpid());
  second.reset();
  EXPECT_FALSE(IsSubreaper());
  ASSERT_EQ(::kill(orphan, SIGKILL), 0);
  EXPECT_TRUE(AwaitReaped(orphan));
}

TEST(TemporarySubreaperTest, OrphansOfOtherJobsAreReaped) {
  pid_t dead, alive;
  {
    TemporarySubreaper subreaper;
    dead = MakeOrphan();
    alive = MakeOrphan();
    ASSERT_GT(dead, 0);
    ASSERT_GT(alive, 0);
    ASSERT_EQ(::kill(dead, SIGKILL), 0);
  }
  EXPECT_TRUE(AwaitReaped(dead));
  ASSERT_EQ(::kill(alive, SIGKILL), 0);
  EXPECT_TRUE(AwaitReaped(alive));
}

TEST(TemporarySubreaperTest, WhoWaitsForAChildGetsItsStatus) {
  std::optional<TemporarySubreaper> subreaper(std::in_place);
  const pid_t orphan = MakeOrphan();
  ASSERT_GT(orphan, 0);
  absl::StatusOr<Subprocess> child = StartShell("exit 7");
  ASSERT_TRUE(child.ok()) << child.status();
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child->pid()), &info, WEXITED | WNOWAIT), 0);
  subreaper.reset();
  ASSERT_EQ(::kill(orphan, SIGKILL), 0);
  ASSERT_TRUE(AwaitReaped(orphan));
  absl::StatusOr<ExitState> exit = child->Wait();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->code, 7);
}

TEST(KillTreeTest, InTheUseOfAnother) {
  std::optional<TemporarySubreaper> other(std::in_place);
  absl::StatusOr<Subprocess> root = StartShell("sleep 1000 & sleep 1000");
  ASSERT_TRUE(root.ok()) << root.status();
  const pid_t pid = root->pid();
  KillTree(pid, /*reap_root=*/false);
  EXPECT_TRUE(IsSubreaper());
  absl::StatusOr<ExitState> exit = root->Wait();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->signal, SIGKILL);
  other.reset();
  EXPECT_FALSE(IsSubreaper());
}

TEST(KillTreeTest, WithoutADescriptorToLookAtAnybody) {
  absl::StatusOr<Subprocess> root = StartShell("exec sleep 1000");
  ASSERT_TRUE(root.ok()) << root.status();
  {
    const FewDescriptorsLeft none;
    EXPECT_THAT(KillTree(root->pid(), /*reap_root=*/false), ::testing::Contains(root->pid()));
  }
  absl::StatusOr<ExitState> exit = root->Wait();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->signal, SIGKILL);
}

// What it was just forking when it was told to stop is there all the same.
TEST(KillTreeTest, OfOneThatForks) {
  for (int round = 0; round < 20; ++round) {
    SubprocessOptions options;
    options.argv = {"sh", "-c", "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait"};
    options.new_session = true;
    absl::StatusOr<Subprocess> root = Subprocess::Start(options);
    ASSERT_TRUE(root.ok()) << root.status();
    const pid_t session = root->pid();
    while (ProcessTree(session).size() < 2 + static_cast<size_t>(round)) std::this_thread::yield();
    KillTree(session, /*reap_root=*/false);
    for (pid_t pid : ListProcesses()) {
      const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
      if (!stat.ok() || stat->session != session || stat->state == 'Z') continue;
      ADD_FAILURE() << CommandLineOf(pid) << " is left, state " << stat->state;
      ::kill(pid, SIGKILL);
    }
  }
}

}  // namespace
}  // namespace rekindle::criu
