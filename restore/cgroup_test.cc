#include "restore/cgroup.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Status kFailure = absl::InternalError("CRIU could not fork");

TEST(ExplainLimitsTest, WhatWasNotForALimitStaysAsItIs) {
  EXPECT_EQ(ExplainLimits(kFailure, "restoring web:1", {64 << 20, 0, 3}, {}), kFailure);
  // Kills and refusals in a group without that limit are others' doing.
  EXPECT_EQ(ExplainLimits(kFailure, "restoring web:1", {0, 0, 3}, {2, 0}), kFailure);
  EXPECT_EQ(ExplainLimits(kFailure, "restoring web:1", {64 << 20, 0, 0}, {0, 2}), kFailure);
  EXPECT_TRUE(ExplainLimits(absl::OkStatus(), "restoring web:1", {64 << 20, 0, 3}, {1, 1}).ok());
}

TEST(ExplainLimitsTest, NamesLimitCureAndConsequence) {
  const absl::Status memory = ExplainLimits(kFailure, "restoring web:1", {64 << 20, 0, 3}, {1, 0});
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()),
              AllOf(HasSubstr("restoring web:1"), HasSubstr("64.0 MiB"), HasSubstr("--memory"),
                    HasSubstr("CRIU could not fork"), Not(HasSubstr("--processes"))));
  const absl::Status processes = ExplainLimits(kFailure, "restoring web:1", {64 << 20, 0, 3}, {0, 4});
  EXPECT_THAT(std::string(processes.message()),
              AllOf(HasSubstr("limit of 3"), HasSubstr("--processes"), Not(HasSubstr("--memory"))));
}

TEST(EndedByMemoryLimitTest, IsWhoWasKilled) {
  EXPECT_TRUE(EndedByMemoryLimit({0, SIGKILL}, 1));
  EXPECT_TRUE(EndedByMemoryLimit({128 + SIGKILL, 0}, 1)) << "a shell";
  EXPECT_FALSE(EndedByMemoryLimit({0, SIGKILL}, 0));
  EXPECT_FALSE(EndedByMemoryLimit({3, 0}, 1)) << "its worker was";
  EXPECT_FALSE(EndedByMemoryLimit({0, SIGTERM}, 1));
}

// Folders that look like what the kernel mounts.
class ExamineTest : public ::testing::Test {
 protected:
  std::string Folder(const std::string& name) {
    const std::string path = absl::StrCat(directory_.path(), "/", name);
    EXPECT_EQ(::mkdir(path.c_str(), 0755), 0);
    return path;
  }
  void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  }
  absl::StatusOr<std::string> Examine(const std::string& mounts) {
    const std::string file = absl::StrCat(directory_.path(), "/mounts");
    Write(file, mounts);
    return Cgroup::Examine(file);
  }

  TemporaryDirectory directory_ = *TemporaryDirectory::Make("/tmp", "rk-cgroup-test.");
};

TEST_F(ExamineTest, OldHierarchies) {
  const std::string memory = Folder("memory"), both = Folder("both");
  auto found = Examine(
      absl::StrCat("cgroup ", memory, " cgroup rw,memory 0 0\ncgroup ", both, " cgroup rw,cpu,pids 0 0\n"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, AllOf(HasSubstr("v1"), HasSubstr(memory), HasSubstr(both)));
}

TEST_F(ExamineTest, NamesTheControllerThatIsMissing) {
  const std::string memory = Folder("memory");
  const absl::Status status =
      Examine(absl::StrCat("cgroup ", memory, " cgroup rw,memory,cpu 0 0\n")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'pids'"));
}

TEST_F(ExamineTest, UnifiedHierarchyThatHandsControllersDown) {
  const std::string root = Folder("unified");
  Write(root + "/cgroup.controllers", "cpuset cpu io memory pids\n");
  Write(root + "/cgroup.subtree_control", "cpu memory pids\n");
  Write(root + "/cgroup.type", "domain\n");
  Write(root + "/cgroup.procs", "1\n");
  const std::string mounts = absl::StrCat("cgroup2 ", root, " cgroup2 rw 0 0\n");
  auto found = Examine(mounts);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, HasSubstr("v2"));
  // As in a container whose own group has its processes.
  Write(root + "/cgroup.subtree_control", "\n");
  const absl::Status status = Examine(mounts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("subtree_control"));
  Write(root + "/cgroup.procs", "");
  EXPECT_TRUE(Examine(mounts).ok());
}

// As a container sees it, whose own group is the root.
TEST_F(ExamineTest, WhatSandboxesMayTakeIsWhatTheGroupsAroundThemLeave) {
  const std::string root = Folder("unified"), file = directory_.path() + "/mounts";
  Write(root + "/cgroup.controllers", "cpu memory pids\n");
  Write(root + "/cgroup.procs", "1\n");
  Write(file, absl::StrCat("cgroup2 ", root, " cgroup2 rw 0 0\n"));
  const uint64_t machine = *Cgroup::AvailableMemory(file);
  EXPECT_GT(machine, 5000u);
  Write(root + "/memory.max", "9000\n");
  Write(root + "/memory.current", "4000\n");
  EXPECT_EQ(*Cgroup::AvailableMemory(file), 5000u);
  const std::string memory = Folder("memory");
  Write(memory + "/cgroup.procs", "1\n");
  Write(memory + "/memory.limit_in_bytes", "8000\n");
  Write(memory + "/memory.usage_in_bytes", "2000\n");
  Write(file, absl::StrCat("cgroup ", memory, " cgroup rw,memory 0 0\n"));
  EXPECT_EQ(*Cgroup::AvailableMemory(file), 6000u);
}

TEST_F(ExamineTest, UnifiedHierarchyWithoutControllersIsNone) {
  const std::string root = Folder("unified");
  Write(root + "/cgroup.controllers", "\n");
  EXPECT_EQ(Examine(absl::StrCat("cgroup2 ", root, " cgroup2 rw 0 0\n")).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(CountedBesideTest, LeavesSoMuchLess) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  auto group = Cgroup::Make();
  ASSERT_TRUE(group.ok()) << group.status();
  const auto limit = [&] {
    const std::string folder = (*group)->memory_folder();
    const std::string unified = folder + "/memory.max";
    return std::string(absl::StripAsciiWhitespace(
        ReadFile(PathExists(unified) ? unified : folder + "/memory.limit_in_bytes").value_or("")));
  };
  CgroupLimits limits;
  limits.memory_bytes = 64 * kMiB;
  (*group)->CountBeside(24 * kMiB);
  ASSERT_TRUE((*group)->Set(limits).ok());
  EXPECT_EQ(limit(), absl::StrCat(40 * kMiB));
  EXPECT_EQ((*group)->limits().memory_bytes, 64 * kMiB);
  EXPECT_GE((*group)->MemoryInUse(), 24 * kMiB);
  EXPECT_LT((*group)->MemoryInUse(), 64 * kMiB);
  (*group)->CountBeside(1024 * kMiB);
  ASSERT_TRUE((*group)->Set(limits).ok());
  EXPECT_EQ(limit(), absl::StrCat(16 * kMiB)) << "a quarter";
}

TEST(PeakMemoryTest, IsWhatWasInUseAtMostSinceItWasReset) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  constexpr size_t kBytes = size_t{64} << 20;
  auto group = Cgroup::Make();
  ASSERT_TRUE(group.ok()) << group.status();
  const std::vector<int> groups = (*group)->processes();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) {
    for (const int entry : groups) {
      if (::write(entry, "0", 1) != 1) ::_exit(1);
    }
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ::_exit(memory == MAP_FAILED ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_GE((*group)->PeakMemory(), kBytes);
  EXPECT_LT((*group)->MemoryInUse(), kBytes);
  const std::string unified = (*group)->memory_folder() + "/memory.peak";
  if (PathExists(unified) && !OpenFile(unified, O_RDWR).ok()) GTEST_SKIP() << "this kernel resets no peak";
  (*group)->ResetPeak();
  EXPECT_LT((*group)->PeakMemory(), kBytes);
}

// What is beyond the limit would go to the machine's swap, and the limit would end nothing.
TEST(MemoryLimitTest, IsOneOfSwapToo) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  auto group = Cgroup::Make();
  ASSERT_TRUE(group.ok()) << group.status();
  const std::string both = (*group)->memory_folder() + "/memory.memsw.limit_in_bytes";
  const std::string swap = (*group)->memory_folder() + "/memory.swap.max";
  if (!PathExists(both) && !PathExists(swap)) GTEST_SKIP() << "this kernel does not count swap";
  for (const uint64_t megabytes : {64, 128, 32}) {
    const absl::Status set = (*group)->Set({megabytes << 20, 0, 0});
    ASSERT_TRUE(set.ok()) << set;
    if (PathExists(both)) {
      EXPECT_EQ(*ReadFile(both), absl::StrCat(megabytes << 20, "\n"));
    } else {
      EXPECT_EQ(*ReadFile(swap), "0\n");
    }
  }
}

// As a manager of the machine's groups does that does not know ours.
TEST(MemoryLimitTest, ControllersThatWereTakenBackAreHandedDownAgain) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  auto group = Cgroup::Make();
  ASSERT_TRUE(group.ok()) << group.status();
  const std::string folder = (*group)->memory_folder();
  if (!PathExists(folder + "/memory.max"))
    GTEST_SKIP() << "only the unified hierarchy hands controllers down";
  const std::string control = folder.substr(0, folder.rfind('/')) + "/cgroup.subtree_control";
  const UniqueFd file = OpenFile(control, O_WRONLY).value();
  const std::string back = "-memory -pids";
  if (!WriteFully(file.get(), back.data(), back.size(), control).ok())
    GTEST_SKIP() << "other groups on this machine need them";
  ASSERT_FALSE(PathExists(folder + "/memory.max"));
  const absl::Status set = (*group)->Set({64 << 20, 0, 10});
  ASSERT_TRUE(set.ok()) << set;
  EXPECT_EQ(*ReadFile(folder + "/memory.max"), absl::StrCat(64 << 20, "\n"));
  EXPECT_EQ(*ReadFile(folder + "/pids.max"), "10\n");
}

// Past what is called in a program at each fork, which a sanitizer may make wait without end in a child of
// many threads.
long BareFork() { return ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0); }

// Each process of it starts two others and ends, as far as its limit lets it: who kills those that were there
// a moment ago is never done.
TEST(CgroupTest, WhatForksWithoutEndIsEnded) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  constexpr int kFirst = 40;
  auto group = Cgroup::Make();
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_TRUE((*group)->Set({0, 0, 400}).ok());
  const std::string folder = (*group)->memory_folder();
  const std::vector<int> groups = (*group)->processes();
  const int64_t give_up_at = absl::ToUnixSeconds(absl::Now() + absl::Minutes(3));
  // The ended ones are nobody's to reap.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  for (int i = 0; i < kFirst; ++i) {
    const long child = BareFork();
    ASSERT_GE(child, 0) << std::strerror(errno);
    if (child > 0) continue;
    for (const int entry : groups) {
      if (::syscall(SYS_write, entry, "0", 1) != 1) ::syscall(SYS_exit_group, 1);
    }
    // Should the test fail, they do not keep the machine busy for good.
    while (::syscall(SYS_time, nullptr) < give_up_at) {
      if (BareFork() > 0 && BareFork() > 0) break;
    }
    ::syscall(SYS_exit_group, 0);
  }
  const auto processes = [&folder] {
    const std::string listed = ReadFile(folder + "/cgroup.procs").value_or("");
    return std::count(listed.begin(), listed.end(), '\n');
  };
  const absl::Time patience = absl::Now() + absl::Minutes(1);
  while (processes() < 300 && absl::Now() < patience) ::usleep(1000);
  EXPECT_GE(processes(), 200);
  group->reset();
  // Where the machine is busy, who made them has gone by the time that all have ended.
  const absl::Time ended_by = absl::Now() + absl::Minutes(1);
  for (; PathExists(folder) && absl::Now() < ended_by; ::usleep(1000)) Cgroup::RemoveLeftovers();
  EXPECT_FALSE(PathExists(folder));
  ::signal(SIGCHLD, before);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// A Rekindle in a container that has the machine's cgroups.
TEST(LeftoversTest, GroupsOfOtherPidNamespacesStayWhileTheirMakerLives) {
  if (auto usable = Cgroup::Examine(); !usable.ok()) GTEST_SKIP() << usable.status();
  int made[2];
  ASSERT_EQ(::pipe2(made, O_CLOEXEC), 0);
  const pid_t child =
      static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, nullptr, nullptr, nullptr, 0));
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto group = Cgroup::Make();
    const std::string folder = group.ok() ? (*group)->memory_folder() : group.status().ToString();
    [[maybe_unused]] ssize_t written = ::write(made[1], folder.data(), folder.size());
    ::close(made[1]);
    for (;;) ::pause();
  }
  ::close(made[1]);
  char text[4096];
  const ssize_t length = ::read(made[0], text, sizeof text);
  ::close(made[0]);
  const std::string folder(text, length > 0 ? static_cast<size_t>(length) : 0);
  EXPECT_TRUE(PathExists(folder)) << folder;
  Cgroup::RemoveLeftovers();
  EXPECT_TRUE(PathExists(folder));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(PathExists(folder));
  Cgroup::RemoveLeftovers();
  EXPECT_FALSE(PathExists(folder));
}

}  // namespace
}  // namespace rekindle::restore
