// What waits does so by the monotonic clock, whatever becomes of the time of day.
#include "base/deadline.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/pidfd.h"
#include "base/subprocess.h"
#include "base/timed_await.h"

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
extern "C" int gettimeofday(struct timeval* time, void*) noexcept {
  struct timespec now = {};
  const int result = ::clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
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

// What Abseil takes for the end of a wait is hours ahead of the kernel's clock here, as where that was set
// back since. If that is heeded this does not return.
TEST(DeadlineTest, WhoSetsTheClockProlongsNoWait) {
  const Jumping jumping;
  absl::Mutex mutex;
  bool asked = false, answered = false;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(AwaitUntil(mutex, absl::Condition(&asked), Deadline(absl::InfiniteDuration())));
    answered = true;
  });
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(AwaitUntil(mutex, absl::Condition(&asked), Deadline(absl::Milliseconds(50))));
  EXPECT_FALSE(AwaitUntil(mutex, absl::Condition(&asked), Deadline(absl::ZeroDuration())));
  asked = true;
  EXPECT_TRUE(AwaitUntil(mutex, absl::Condition(&answered), Deadline(absl::Minutes(2))));
  mutex.Unlock();
  other.join();
  mutex.Lock();
}

// One whose time is over while another has its lock, who waits for an end of time himself.
TEST(DeadlineTest, WaitsUnderSeveralLocksEndEachInItsTime) {
  absl::Mutex outer, inner;
  bool waits = false, never = false;
  std::thread holder([&] {
    absl::MutexLock lock(&outer);
    AwaitUntil(outer, absl::Condition(&waits), Deadline(absl::InfiniteDuration()));
    absl::MutexLock inner_lock(&inner);
    EXPECT_FALSE(AwaitUntil(inner, absl::Condition(&never), Deadline(absl::Milliseconds(100))));
  });
  {
    absl::MutexLock lock(&outer);
    waits = true;
    EXPECT_FALSE(AwaitUntil(outer, absl::Condition(&never), Deadline(absl::Milliseconds(20))));
  }
  holder.join();
}

}  // namespace
}  // namespace rekindle
