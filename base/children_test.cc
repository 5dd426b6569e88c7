#include "base/children.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "base/test_child.h"

namespace rekindle {
namespace {

// Until it is no zombie either: nothing tells when it is reaped.
bool AwaitReaped(TestChild& child) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!absl::IsNotFound(ReadProcessStat(child.pid()).status())) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  child.Reap();  // it must not look for the PID any more
  return true;
}

absl::StatusOr<Subprocess> Start(std::vector<std::string> argv) {
  SubprocessOptions options;
  options.argv = std::move(argv);
  return Subprocess::Start(options);
}

bool IsThere(pid_t pid) { return ReadProcessStat(pid).ok(); }

TEST(ChildrenTest, StraysAreReapedWhenTheyEnd) {
  const ProcessStarts before = ListChildren();
  TestChild dead, alive;
  dead.Kill();
  ASSERT_TRUE(dead.AwaitEnd());
  ReapStrays(before);
  EXPECT_TRUE(AwaitReaped(dead));
  EXPECT_TRUE(IsThere(alive.pid()));
  alive.Kill();
  EXPECT_TRUE(AwaitReaped(alive));
}

TEST(ChildrenTest, StraysAreSeen) {
  absl::StatusOr<Subprocess> noted = Start({"sleep", "1000"});
  ASSERT_TRUE(noted.ok()) << noted.status();
  EXPECT_FALSE(MayHaveStrays());
  TestChild stray;
  EXPECT_TRUE(MayHaveStrays());
  ReapStrays({});
  EXPECT_FALSE(MayHaveStrays());
  stray.Kill();
  EXPECT_TRUE(AwaitReaped(stray));
  ::kill(noted->pid(), SIGKILL);
  EXPECT_TRUE(noted->Wait().ok());
}

size_t EntriesOf(const char* folder) { return ListDirectory(folder).value().size(); }

TEST(ChildrenTest, LivingStraysCostNothing) {
  const ProcessStarts before = ListChildren();
  std::array<TestChild, 20> strays;
  const size_t descriptors = EntriesOf("/proc/self/fd"), threads = EntriesOf("/proc/self/task");
  // Each comes alone.
  for (ProcessStarts old = ListChildren(); old != before;) {
    old.erase(*std::find_if(old.begin(), old.end(), [&](auto& child) { return !before.contains(child); }));
    ReapStrays(old);
  }
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
  EXPECT_LE(EntriesOf("/proc/self/task"), threads + 1);
  for (TestChild& stray : strays) stray.Kill();
  for (TestChild& stray : strays) EXPECT_TRUE(AwaitReaped(stray));
}

TEST(ChildrenTest, ThoseFromBeforeAreLeftAlone) {
  TestChild old;
  const ProcessStarts before = ListChildren();
  EXPECT_EQ(before.count({old.pid(), ReadProcessStat(old.pid())->start_ticks}), 1u);
  old.Kill();
  ASSERT_TRUE(old.AwaitEnd());
  TestChild stray;
  ReapStrays(before);
  stray.Kill();
  ASSERT_TRUE(AwaitReaped(stray));
  EXPECT_TRUE(IsThere(old.pid()));
}

TEST(ChildrenTest, NotedOnesKeepTheirStatus) {
  const ProcessStarts before = ListChildren();
  absl::StatusOr<Subprocess> child = Start({"sh", "-c", "exit 7"});
  ASSERT_TRUE(child.ok()) << child.status();
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child->pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(IsNotedChild(child->pid()));
  TestChild stray;
  EXPECT_FALSE(IsNotedChild(stray.pid()));
  ReapStrays(before);
  stray.Kill();
  ASSERT_TRUE(AwaitReaped(stray));
  absl::StatusOr<ExitState> exit = child->Wait();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->code, 7);
}

TEST(ChildrenTest, WhatIsBeingMadeMayBeNotedYet) {
  const ProcessStarts before = ListChildren();
  TestChild stray, made;
  stray.Kill();
  made.Kill();
  ASSERT_TRUE(stray.AwaitEnd());
  ASSERT_TRUE(made.AwaitEnd());
  std::optional<MakingChild> making(std::in_place);
  ReapStrays(before);
  EXPECT_TRUE(IsThere(stray.pid()));
  NoteChild(made.pid());
  // One that begins now can't be making any of those that are there.
  MakingChild later;
  making.reset();
  EXPECT_TRUE(AwaitReaped(stray));
  EXPECT_TRUE(IsThere(made.pid()));
}

TEST(ChildrenTest, ManyNotesOfChildrenThatAreNoMore) {
  for (int i = 0; i < 600; ++i) {
    absl::StatusOr<Subprocess> child = Start({"true"});
    ASSERT_TRUE(child.ok()) << child.status();
    const pid_t pid = child->pid();
    EXPECT_TRUE(IsNotedChild(pid));
    ASSERT_TRUE(child->Wait().ok());
    EXPECT_FALSE(IsNotedChild(pid));
  }
}

}  // namespace
}  // namespace rekindle
