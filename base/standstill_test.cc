#include "base/standstill.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "base/subprocess.h"

namespace rekindle {
namespace {

TEST(StandstillTest, OfOneThatIsTold) {
  SubprocessOptions options;
  options.argv = {"sh", "-c", "while :; do :; done"};
  auto process = Subprocess::Start(options);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_FALSE(StandsStill(process->pid()));
  AwaitStandstill(process->pid(), Deadline(absl::Milliseconds(1)));  // nobody told it
  ASSERT_TRUE(process->Signal(SIGSTOP).ok());
  AwaitStandstill(process->pid(), Deadline(absl::Seconds(30)));
  EXPECT_TRUE(StandsStill(process->pid()));
  ASSERT_TRUE(process->Signal(SIGKILL).ok());
  const pid_t pid = process->pid();
  ASSERT_TRUE(process->Wait().ok());
  EXPECT_TRUE(StandsStill(pid));
}

TEST(StandstillTest, AllThreadsCount) { EXPECT_FALSE(StandsStill(::getpid())); }

}  // namespace
}  // namespace rekindle
