#include "daemon/rpc_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/test_child.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

constexpr uid_t kUser = 65534;

Caller LocalCaller(pid_t pid) {
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = kUser;
  caller.gid = kUser;
  caller.pid = pid;
  caller.pidfd = std::make_shared<const UniqueFd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return caller;
}

v1::RestoreRequest ForItsInput() {
  v1::RestoreRequest request;
  for (int i = 0; i < 3; ++i) request.add_stdio_fds(0);
  return request;
}

bool Become(uid_t effective) {
  return ::syscall(SYS_setgroups, 0, nullptr) == 0 && ::setresgid(kUser, kUser, kUser) == 0 &&
         ::setresuid(kUser, effective, effective) == 0;
}

TEST(TakeStdioTest, FromAProcessThatIsTheCallers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  const TestChild child([] { return Become(kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0; });
  ASSERT_TRUE(child.prepared());
  const auto taken = TakeStdio(LocalCaller(child.pid()), ForItsInput());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->size(), 3u);
}

TEST(TakeStdioTest, NotFromASetUidProgramThatHasTakenItsPlace) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  for (const uid_t effective : {uid_t{0}, kUser}) {
    const TestChild child([effective] { return Become(effective); });
    ASSERT_TRUE(child.prepared());
    const absl::Status refused = TakeStdio(LocalCaller(child.pid()), ForItsInput()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  }
}

}  // namespace
}  // namespace rekindle::daemon
