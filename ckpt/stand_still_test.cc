#include "ckpt/stand_still.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"

namespace rekindle::ckpt {
namespace {

TEST(StandStillTest, AStopWaitsForTheLastJob) {
  auto one = std::make_unique<StandStill>(), other = std::make_unique<StandStill>();
  std::atomic<int> standing{2};
  std::thread stopper([&] { StopWhenNoneStandsStill([&] { EXPECT_EQ(standing, 0); }); });
  --standing;
  one.reset();
  --standing;
  other.reset();
  stopper.join();
}

TEST(StandStillTest, NoJobBeginsToStandDuringAStop) {
  absl::Notification stopping, go_on;
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    StopWhenNoneStandsStill([&] {
      stopped = true;
      stopping.Notify();
      go_on.WaitForNotification();
      stopped = false;
    });
  });
  stopping.WaitForNotification();
  std::thread capture([&] {
    const StandStill standing;
    EXPECT_FALSE(stopped);
  });
  go_on.Notify();
  capture.join();
  stopper.join();
}

}  // namespace
}  // namespace rekindle::ckpt
