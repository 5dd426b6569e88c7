#include "daemon/start_bound.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/clock.h"

namespace rekindle::daemon {
namespace {

bool Readable(const StartBound& bound, int wait_ms) {
  pollfd entry{bound.fd(), POLLIN, 0};
  return ::poll(&entry, 1, wait_ms) == 1;
}

TEST(StartBoundTest, IsOverWithItsTimeAndWithTheDaemon) {
  Cancellation ending;
  const auto past = StartBound::Make(ending, SteadyNow() - absl::Seconds(1));
  const auto soon = StartBound::Make(ending, SteadyNow() + absl::Milliseconds(20));
  const auto late = StartBound::Make(ending, SteadyNow() + absl::Hours(1));
  const auto never = StartBound::Make(ending, absl::InfiniteFuture());
  ASSERT_TRUE(past.ok() && soon.ok() && late.ok() && never.ok());
  EXPECT_TRUE(Readable(*past, -1));
  EXPECT_TRUE(Readable(*soon, -1));
  EXPECT_TRUE(Readable(*soon, 0)) << "it stays so";
  EXPECT_FALSE(Readable(*late, 0));
  EXPECT_FALSE(Readable(*never, 0));
  ending.Cancel();
  EXPECT_TRUE(Readable(*late, 0));
  EXPECT_TRUE(Readable(*never, 0));
  const auto after = StartBound::Make(ending, absl::InfiniteFuture());
  ASSERT_TRUE(after.ok());
  EXPECT_TRUE(Readable(*after, 0));
}

}  // namespace
}  // namespace rekindle::daemon
