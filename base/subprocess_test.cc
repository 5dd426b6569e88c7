#include "base/subprocess.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_user.h"

namespace rekindle {
namespace {

TEST(SubprocessTest, ReportsExitStatusAndSignal) {
  auto a = RunCommand({"sh", "-c", "echo hello; echo there >&2; exit 3"}, absl::Seconds(10));
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->exit.code, 3);
  EXPECT_EQ(a->output, "hello\nthere\n");
  auto b = RunCommand({"sh", "-c", "kill -9 $$"}, absl::Seconds(10));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->exit.signal, 9);
}

TEST(SubprocessTest, AnEnvironmentWithSomeOtherVariables) {
  ::setenv("LD_PRELOAD", "their.so", 1);
  ::setenv("COLOUR", "red", 1);
  ::setenv("COLOURS", "two", 1);
  const std::vector<std::string> environment =
      EnvironmentWith({"LD_PRELOAD=ours.so", "COLOUR=blue", "NEW=1"});
  ::unsetenv("LD_PRELOAD");
  std::map<std::string, int> counts;
  for (const std::string& variable : environment) ++counts[variable];
  for (const char* once : {"LD_PRELOAD=ours.so:their.so", "COLOUR=blue", "COLOURS=two", "NEW=1"})
    EXPECT_EQ(counts[once], 1) << once;
  EXPECT_EQ(counts["COLOUR=red"], 0);
}

TEST(SubprocessTest, AMissingProgramIsAnErrorOfStart) {
  EXPECT_EQ(RunCommand({"/no/such/program"}, absl::Seconds(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunCommand({"no-such-program-here"}, absl::Seconds(1)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SubprocessTest, TheChildHasOnlyTheDescriptorsItWasGiven) {
  int stray = ::open("/dev/zero", O_RDONLY);  // without O_CLOEXEC on purpose
  auto result = RunCommand({"sh", "-c", "ls /proc/$$/fd"}, absl::Seconds(10));
  ::close(stray);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->output, "0\n1\n2\n");
}

TEST(SubprocessTest, DescriptorsMayBeSwapped) {
  int a[2], b[2];
  ASSERT_EQ(::pipe2(a, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(b, O_CLOEXEC), 0);
  SubprocessOptions options;
  options.argv = {"sh", "-c", "echo to-a >&3; echo to-b >&4"};
  options.descriptors = {{a[1], 3}, {b[1], 4}};
  auto child = Subprocess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  ::close(a[1]);
  ::close(b[1]);
  char text[16] = {};
  EXPECT_EQ(::read(a[0], text, sizeof text), 5);
  EXPECT_STREQ(text, "to-a\n");
  EXPECT_EQ(::read(b[0], text, sizeof text), 5);
  EXPECT_STREQ(text, "to-b\n");
  EXPECT_TRUE(child->Wait()->ok());
  ::close(a[0]);
  ::close(b[0]);
}

TEST(SubprocessTest, TheChildHasItsOwnUmask) {
  for (const auto& [umask, code] : {std::pair(-1, 0), std::pair(0177, 1)}) {
    SubprocessOptions options;
    options.argv = {"sh", "-c", "test $(umask) != 0177"};
    options.umask = umask;
    auto child = Subprocess::Start(options);
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(child->Wait()->code, code) << umask;
  }
}

TEST(SubprocessTest, TheChildIsAnotherUsersAndStillEndsWithItsParent) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);
  SubprocessOptions options;
  options.argv = {"sh", "-c", "id -u; id -g; id -G; exec sleep 1000"};
  options.descriptors = {{write.get(), 1}};
  options.die_with_parent_thread = true;
  options.run_as = Owner{kNobody, kNobody, {kNobody, 12345}};
  Subprocess child;
  std::string said;
  std::thread parent([&] {
    absl::StatusOr<Subprocess> started = Subprocess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    child = *std::move(started);
    write.Reset();
    for (char c = 0; std::count(said.begin(), said.end(), '\n') < 3 && ::read(read.get(), &c, 1) == 1;)
      said += c;
  });
  parent.join();
  EXPECT_EQ(said, "65534\n65534\n65534 12345\n");
  const absl::StatusOr<ExitState> exit = child.WaitFor(absl::Seconds(30));
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->signal, SIGKILL);
}

TEST(SubprocessTest, TimesOutAndKillsWhatItOwns) {
  auto result = RunCommand({"sh", "-c", "exec cat /dev/zero >/dev/null"}, absl::Milliseconds(50));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
}

// A zombie has ended.
bool Runs(pid_t pid) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  return stat.ok() && stat->state != 'Z' && stat->state != 'X';
}

TEST(SubprocessTest, WhatACommandHasStartedIsKilledWithIt) {
  auto folder = TemporaryDirectory::Make(::testing::TempDir(), "subprocess-");
  ASSERT_TRUE(folder.ok());
  const std::string file = folder->path() + "/pid";
  auto result = RunCommand({"sh", "-c", "sleep 1000 | cat & echo $! > \"$0\"; wait", file}, absl::Seconds(1));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  pid_t cat = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadFile(file).value_or(""), &cat));
  const Stopwatch waited;
  while (Runs(cat) && waited.seconds() < 30) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(Runs(cat));
}

TEST(SubprocessTest, ACommandHasEndedWhateverItLeavesBehind) {
  auto result = RunCommand({"sh", "-c", "sleep 1000 & echo $!"}, absl::Seconds(30));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->exit.ok());
  pid_t left = 0;
  ASSERT_TRUE(absl::SimpleAtoi(result->output, &left)) << result->output;
  EXPECT_TRUE(Runs(left));
  ::kill(left, SIGKILL);
  result = RunCommand({"sh", "-c", "yes & echo $!"}, absl::Seconds(30));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->exit.ok());
}

TEST(SubprocessTest, AllThatACommandSaysComes) {
  auto result =
      RunCommand({"sh", "-c", "head -c 1000000 /dev/zero; exec >&- 2>&-; exit 5"}, absl::Seconds(30));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.size(), 1'000'000u);
  EXPECT_EQ(result->exit.code, 5);
}

TEST(SubprocessTest, OneThatIsAssignedToEndsTheOther) {
  SubprocessOptions options;
  options.argv = {"sleep", "1000"};
  absl::StatusOr<Subprocess> one = Subprocess::Start(options), other = Subprocess::Start(options);
  ASSERT_TRUE(one.ok() && other.ok());
  const pid_t ended = one->pid(), stays = other->pid();
  const int descriptor = other->pidfd();
  *one = *std::move(other);
  EXPECT_EQ(::kill(ended, 0), -1);
  EXPECT_EQ(one->pid(), stays);
  EXPECT_EQ(one->pidfd(), descriptor);
  EXPECT_EQ(::fcntl(descriptor, F_GETFD), FD_CLOEXEC) << "it is open";
  EXPECT_EQ(::kill(stays, 0), 0);
}

}  // namespace
}  // namespace rekindle
