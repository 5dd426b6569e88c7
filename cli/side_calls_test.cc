#include "cli/side_calls.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/synchronization/notification.h"

namespace rekindle::cli {
namespace {

TEST(SideCallsTest, NoneWaitsForAnother) {
  absl::Notification second;
  std::atomic<int> ended{0};
  SideCalls calls;
  calls.Begin([&] {
    second.WaitForNotification();
    ++ended;
  });
  calls.Begin([&] {
    second.Notify();
    ++ended;
  });
  calls.AwaitAll();
  EXPECT_EQ(ended, 2);
}

TEST(SideCallsTest, ThoseThatAreBegunByOneAreAwaited) {
  std::atomic<bool> ended{false};
  {
    SideCalls calls;
    calls.Begin([&] { calls.Begin([&] { ended = true; }); });
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace rekindle::cli
