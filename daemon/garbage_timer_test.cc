#include "daemon/garbage_timer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace rekindle::daemon {
namespace {

TEST(GarbageTimerTest, WhatIsUrgentDoesNotWaitForWhatIsNot) {
  std::atomic<int> collections{0};
  absl::Notification collected;
  GarbageTimer timer([&] {
    if (++collections == 1) collected.Notify();
    return absl::UnavailableError("the store is away");  // told, and no more
  });
  timer.CollectSoon(3600);
  timer.CollectSoon(0);
  EXPECT_TRUE(collected.WaitForNotificationWithTimeout(absl::Seconds(60)));
  timer.Stop();
  EXPECT_EQ(collections, 1) << "both wanted the same";
}

TEST(GarbageTimerTest, OnceItIsStoppedNothingIsCollected) {
  std::atomic<int> collections{0};
  GarbageTimer timer([&] {
    ++collections;
    return absl::OkStatus();
  });
  timer.CollectSoon(3600);
  timer.BeginStop();
  timer.CollectSoon(0);
  timer.Stop();
  EXPECT_EQ(collections, 0);
}

}  // namespace
}  // namespace rekindle::daemon
