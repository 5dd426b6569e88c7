// A folder of a test's on a file system that is soon full.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace rekindle {

// Does `work`, with its expectations, in a child of this process in which `folder` is on a file system of its
// own, of `size` ("64k"), that goes with the child. Skips the test where it can't be mounted. The last thing
// that a test does; no other thread may run in it.
inline void OnSmallDisk(const std::string& folder, const std::string& size,
                        const std::function<void()>& work) {
  constexpr int kNoMounts = 77;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string options = "mode=0700,size=" + size;
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("small", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) {
      ::_exit(kNoMounts);
    }
    work();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  if (WEXITSTATUS(state) == kNoMounts) GTEST_SKIP() << "no mounts here";
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

}  // namespace rekindle
