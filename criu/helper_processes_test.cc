#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rekindle::criu {
namespace {

using Sleep = unsigned int (*)(unsigned int);

// Each holds one end of a pipe: it is at its end when both have ended.
TEST(HelperProcessesTest, OneThatSleepsEndsWithWhoMadeIt) {
  int ends[2], begun[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(begun, O_CLOEXEC), 0);
  const pid_t criu = ::fork();
  if (criu == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    void* library = ::dlopen(REKINDLE_CRIU_BOUNDS, RTLD_NOW);
    const auto sleep = reinterpret_cast<Sleep>(library != nullptr ? ::dlsym(library, "sleep") : nullptr);
    if (sleep == nullptr) ::_exit(2);
    if (::fork() == 0) {
      // The first one returns once what it sets is set.
      sleep(0);
      if (::write(begun[1], "x", 1) != 1) ::_exit(3);
      for (;;) sleep(1000);
    }
    for (;;) ::pause();
  }
  ::close(ends[1]);
  ::close(begun[1]);
  char byte;
  ASSERT_EQ(::read(begun[0], &byte, 1), 1);
  ::kill(criu, SIGKILL);
  EXPECT_EQ(::waitpid(criu, nullptr, 0), criu);
  pollfd gone{ends[0], POLLIN, 0};
  EXPECT_EQ(::poll(&gone, 1, 30'000), 1) << "it sleeps on";
  ::close(ends[0]);
  ::close(begun[0]);
}

}  // namespace
}  // namespace rekindle::criu
