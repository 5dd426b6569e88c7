#include "base/process_stat.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/subprocess.h"
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

TEST(ProcessStat, OfALongCommandLineTheBeginning) {
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", "kill -STOP $$"};
  for (int i = 0; i < 10; ++i) options.argv.emplace_back(100000, 'x');
  Subprocess program = Subprocess::Start(options).value();
  int status = 0;
  ASSERT_EQ(::waitpid(program.pid(), &status, WUNTRACED), program.pid());
  const std::string command = CommandLineOf(program.pid());
  EXPECT_EQ(command.substr(0, 30), "/bin/sh -c kill -STOP $$ xxxxx");
  EXPECT_EQ(command.size(), 4096u);
  ASSERT_TRUE(program.Signal(SIGKILL).ok());
  EXPECT_TRUE(program.Wait().ok());
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

// A process that lives until it is told to end, or one that ends when its pipe does.
template <typename Body>
pid_t Fork(const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  ::_exit(0);
}

void ReadByte(int pipe) {
  char byte;
  while (::read(pipe, &byte, 1) < 0 && errno == EINTR) {
  }
}

void TellAndPause(int pipe) {
  if (::write(pipe, "x", 1) == 1) ::pause();
}

TEST(ProcessStat, ATreeHasTheChildrenOfAllThreadsAndNoZombies) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = Fork([&] {
    // Another thread's child, with one of its own; and one that nobody reaps.
    std::thread([&] {
      Fork([&] {
        Fork([&] { TellAndPause(told[1]); });
        ::pause();
      });
      const pid_t zombie = ::fork();
      if (zombie == 0) ::_exit(0);
      siginfo_t info;
      ::waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT);
      TellAndPause(told[1]);
    }).join();
  });
  ReadByte(told[0]);
  ReadByte(told[0]);
  std::vector<pid_t> tree = ProcessTree(child);
  EXPECT_EQ(tree.size(), 3u);
  ASSERT_FALSE(tree.empty());
  EXPECT_EQ(tree.front(), child);
  std::vector<pid_t> scanned = ProcessChildren().Tree(child);
  std::sort(tree.begin(), tree.end());
  std::sort(scanned.begin(), scanned.end());
  EXPECT_EQ(tree, scanned);
  std::vector<pid_t> with_zombie = ProcessTree(child, Zombies::kToo);
  EXPECT_EQ(with_zombie.size(), 4u);
  EXPECT_EQ(with_zombie.front(), child);
  scanned = ProcessChildren(Zombies::kToo).Tree(child);
  std::sort(with_zombie.begin(), with_zombie.end());
  std::sort(scanned.begin(), scanned.end());
  EXPECT_EQ(with_zombie, scanned);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(ProcessTree(child).empty());
  ::close(told[0]);
  ::close(told[1]);
}

TEST(ProcessStat, WhoseFirstThreadHasEndedHasNotEnded) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = Fork([&] {
    std::thread([&] {
      Fork([&] { TellAndPause(told[1]); });
      ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);
  });
  ReadByte(told[0]);
  auto stat = ReadProcessStat(child);
  while (stat.ok() && stat->state != 'Z') stat = ReadProcessStat(child);
  ASSERT_TRUE(stat.ok());
  EXPECT_FALSE(stat->ended());
  EXPECT_EQ(ProcessTree(child).size(), 2u);
  EXPECT_EQ(ProcessChildren().Tree(child).size(), 2u);
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  stat = ReadProcessStat(child);
  ASSERT_TRUE(stat.ok());
  EXPECT_TRUE(stat->ended());
  EXPECT_TRUE(ProcessTree(child).empty());
  ::waitpid(child, nullptr, 0);
  ::close(told[0]);
  ::close(told[1]);
}

TEST(ProcessStat, AThreadIsTheRootOfNoTree) {
  pid_t thread = 0;
  std::vector<pid_t> tree;
  std::thread([&] {
    thread = ::gettid();
    tree = ProcessTree(thread);
  }).join();
  EXPECT_NE(thread, ::getpid());
  EXPECT_TRUE(tree.empty());
}

TEST(ProcessStat, AProcessHasItsThreadsAndNoOther) {
  std::thread([] {
    const auto threads = ThreadsOf(::getpid());
    ASSERT_TRUE(threads.ok()) << threads.status();
    EXPECT_EQ(std::count(threads->begin(), threads->end(), ::gettid()), 1);
    EXPECT_EQ(std::count(threads->begin(), threads->end(), ::getpid()), 1);
    EXPECT_EQ(std::count(threads->begin(), threads->end(), ::getppid()), 0);
    EXPECT_TRUE(std::is_sorted(threads->begin(), threads->end()));
  }).join();
  EXPECT_TRUE(absl::IsNotFound(ThreadsOf(0).status()));
}

TEST(ProcessStat, NobodyIsMissedWhenOthersEndOrGetAnotherParent) {
  constexpr int kRounds = 20, kPairs = 12;
  for (int round = 0; round < kRounds; ++round) {
    int told[2], end[2];
    ASSERT_EQ(::pipe(told), 0);
    ASSERT_EQ(::pipe(end), 0);
    const pid_t root = Fork([&] {
      // Children that stay lie between those that end, and those whose parents end come to it.
      ::prctl(PR_SET_CHILD_SUBREAPER, 1);
      for (int i = 0; i < kPairs; ++i) {
        Fork([&] {
          if (::fork() == 0) {
            TellAndPause(told[1]);
            ::_exit(0);
          }
          ReadByte(end[0]);
        });
        Fork([&] { TellAndPause(told[1]); });
      }
      for (int i = 0; i < kPairs; ++i) ::wait(nullptr);
      if (::write(told[1], "e", 1) == 1) ::pause();
    });
    for (int i = 0; i < 2 * kPairs; ++i) ReadByte(told[0]);
    std::set<pid_t> stay;
    for (const pid_t pid : ProcessTree(root)) stay.insert(pid);
    ASSERT_EQ(stay.size(), 1u + 3 * kPairs);
    std::set<pid_t> ending;
    for (const pid_t pid : stay) {
      const auto stat = ReadProcessStat(pid);
      if (stat.ok() && stat->parent != root && pid != root) ending.insert(stat->parent);
    }
    ASSERT_EQ(ending.size(), static_cast<size_t>(kPairs));
    for (const pid_t pid : ending) stay.erase(pid);
    const std::string bytes(kPairs, 'x');
    ASSERT_EQ(::write(end[1], bytes.data(), bytes.size()), kPairs);
    for (pollfd all_ended{told[0], POLLIN, 0}; ::poll(&all_ended, 1, 0) == 0;) {
      const std::vector<pid_t> tree = ProcessTree(root);
      for (const pid_t pid : stay) EXPECT_EQ(std::count(tree.begin(), tree.end(), pid), 1) << pid;
    }
    for (const pid_t pid : ProcessTree(root)) ::kill(pid, SIGKILL);
    ::waitpid(root, nullptr, 0);
    for (const int fd : {told[0], told[1], end[0], end[1]}) ::close(fd);
  }
}

TEST(ProcessStat, WhoCannotBeLookedAtIsNotSaidToBeGone) {
  const FewDescriptorsLeft none;
  EXPECT_EQ(ReadProcessStat(::getpid()).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace rekindle
