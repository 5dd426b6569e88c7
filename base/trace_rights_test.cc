#include "base/trace_rights.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/test_child.h"
#include "base/test_user.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

using testing::HasSubstr;

const Owner kUser{kNobody, kNobody, {65533}};

class TraceRightsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  }
  static bool Become(gid_t group, gid_t effective_group, uid_t real, uid_t effective) {
    return ::setgroups(0, nullptr) == 0 && ::setresgid(group, effective_group, effective_group) == 0 &&
           ::setresuid(real, effective, effective) == 0;
  }
  // As execve(2) leaves what is a user's alone.
  static bool IsAllHis() { return ::prctl(PR_SET_DUMPABLE, 1) == 0; }
  static std::string Refusal(const TestChild& child) {
    EXPECT_TRUE(child.prepared());
    const absl::Status status = CheckMayTrace(child.pid(), kUser);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  }
};

TEST_F(TraceRightsTest, HisOwn) {
  const TestChild child([] { return Become(kNobody, kNobody, kNobody, kNobody) && IsAllHis(); });
  ASSERT_TRUE(child.prepared());
  EXPECT_TRUE(CheckMayTrace(child.pid(), kUser).ok()) << CheckMayTrace(child.pid(), kUser);
  const TestChild other([] { return Become(65533, 65533, kNobody, kNobody) && IsAllHis(); });
  EXPECT_TRUE(CheckMayTrace(other.pid(), kUser).ok()) << "a group of his";
}

TEST_F(TraceRightsTest, OfASetUidProgram) {
  const TestChild running([] { return Become(kNobody, kNobody, kNobody, 0); });
  EXPECT_THAT(Refusal(running), HasSubstr("uid 0"));
  const TestChild dropped([] { return Become(kNobody, kNobody, kNobody, kNobody); });
  EXPECT_THAT(Refusal(dropped), HasSubstr("lets nobody look"));
}

TEST_F(TraceRightsTest, OfASetGidProgram) {
  const TestChild running([] { return Become(kNobody, 42, kNobody, kNobody) && IsAllHis(); });
  EXPECT_THAT(Refusal(running), HasSubstr("gid 42"));
  const TestChild whole([] { return Become(42, 42, kNobody, kNobody) && IsAllHis(); });
  EXPECT_THAT(Refusal(whole), HasSubstr("gid 42"));
}

TEST_F(TraceRightsTest, WithCapabilities) {
  const TestChild child([] {
    return ::prctl(PR_SET_KEEPCAPS, 1) == 0 && Become(kNobody, kNobody, kNobody, kNobody) && IsAllHis();
  });
  EXPECT_THAT(Refusal(child), HasSubstr("capabilities"));
}

TEST_F(TraceRightsTest, AnothersAndNobodys) {
  const TestChild roots;
  EXPECT_THAT(Refusal(roots), HasSubstr("uid 0"));
  TestChild gone;
  gone.Kill();
  ASSERT_TRUE(gone.AwaitEnd());
  gone.Reap();
  EXPECT_TRUE(absl::IsNotFound(CheckMayTrace(gone.pid(), kUser))) << CheckMayTrace(gone.pid(), kUser);
}

TEST(ProgramOfTest, IsAnotherAfterEachExecution) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // Tells each time that it has begun.
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], 1);
    ::execl("/bin/sh", "sh", "-c", "echo; kill -STOP $$; exec sh -c 'echo; kill -STOP $$'", nullptr);
    ::_exit(1);
  }
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const UniqueFd output(ends[0]), input(ends[1]);
  char byte;
  ASSERT_EQ(::read(output.get(), &byte, 1), 1);
  const auto first = ProgramOf(pid), again = ProgramOf(pid);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *again);
  ASSERT_EQ(::waitpid(pid, nullptr, WUNTRACED), pid);
  ::kill(pid, SIGCONT);
  ASSERT_EQ(::read(output.get(), &byte, 1), 1);
  EXPECT_NE(*ProgramOf(pid), *first);
  KillAndAwaitExit(pidfd.get());
  ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace rekindle
