// What waits does so by the monotonic clock, whatever becomes of the time of day.
#include "base/deadline.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "base/pidfd.h"
#include "base/subprocess.h"

namespace {

// An hour more at each look.
std::atomic<bool> jumps{false};
std::atomic<int64_t> jumped{0};

}  // namespace

// In place of libc's, in this program: nothing else changes what time it is for one process alone.
extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME && jumps) time->tv_sec += 3600 * ++jumped;
  return result;
}

namespace rekindle {
namespace {

class Jumping {
 public:
  Jumping() { jumps = true; }
  ~Jumping() { jumps = false; }
};

TEST(DeadlineTest, IsReachedAndNotBefore) {
  const Deadline far(absl::Hours(1)), never(absl::InfiniteDuration()), now{absl::ZeroDuration()},
      past(-absl::Hours(1));
  EXPECT_FALSE(far.passed());
  EXPECT_GT(far.left(), absl::Minutes(30));
  EXPECT_GT(far.left_ms(), 30 * 60'000);
  EXPECT_FALSE(never.passed());
  EXPECT_EQ(never.left_ms(), -1);
  for (const Deadline* over : {&now, &past}) {
    EXPECT_TRUE(over->passed());
    EXPECT_EQ(over->left(), absl::ZeroDuration());
    EXPECT_EQ(over->left_ms(), 0);
  }
}

TEST(DeadlineTest, WhoSetsTheClockEndsNoWait) {
  const Jumping jumping;
  const absl::Time before = absl::Now();
  ASSERT_GT(absl::Now() - before, absl::Minutes(30));
  const auto result = RunCommand({"sleep", "0.1"}, absl::Minutes(2));
  EXPECT_TRUE(result.ok()) << result.status();
  SubprocessOptions options;
  options.argv = {"sleep", "0.1"};
  auto child = Subprocess::Start(options);
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(AwaitExit(child->pidfd(), absl::Minutes(2)));
  child = Subprocess::Start(options);
  ASSERT_TRUE(child.ok());
  const auto exit = child->WaitFor(absl::Minutes(2));
  EXPECT_TRUE(exit.ok()) << exit.status();
}

}  // namespace
}  // namespace rekindle
