#include "base/process_stat.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/test_descriptors.h"

namespace rekindle {
namespace {

TEST(ProcessStat, KnowsThisProcess) {
  auto self = ReadProcessStat(::getpid());
  ASSERT_TRUE(self.ok()) << self.status();
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->group, ::getpgrp());
  EXPECT_EQ(self->session, ::getsid(0));
  EXPECT_GT(self->start_ticks, 0u);
  EXPECT_FALSE(self->ending());
  EXPECT_FALSE(self->kernel_thread());
  EXPECT_NE(CommandLineOf(::getpid()).find("base_test"), std::string::npos);
  auto all = ListProcesses();
  EXPECT_TRUE(std::count(all.begin(), all.end(), ::getpid()));
}

TEST(ProcessStat, AZombieWithAnAwkwardNameIsReadAndIsEnding) {
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, ") Z 1 (x");
    ::_exit(0);
  }
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  auto stat = ReadProcessStat(child);
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->state, 'Z');
  EXPECT_EQ(stat->parent, ::getpid());
  EXPECT_EQ(stat->name, ") Z 1 (x");
  EXPECT_TRUE(stat->ending());
  EXPECT_EQ(CommandLineOf(child), "[) Z 1 (x]");
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(ReadProcessStat(child).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CommandLineOf(child), "");
}

TEST(ProcessStat, ASnapshotTellsTheTreesOfItsMoment) {
  pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const ProcessChildren then;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const std::vector<pid_t> tree = then.Tree(::getpid());
  ASSERT_FALSE(tree.empty());
  EXPECT_EQ(tree.front(), ::getpid());
  EXPECT_EQ(std::count(tree.begin(), tree.end(), child), 1);
  EXPECT_EQ(then.Tree(child), std::vector<pid_t>{child});
  EXPECT_TRUE(ProcessTree(child).empty());
}

TEST(ProcessStat, WhoCannotBeLookedAtIsNotSaidToBeGone) {
  const FewDescriptorsLeft none;
  EXPECT_EQ(ReadProcessStat(::getpid()).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace rekindle
