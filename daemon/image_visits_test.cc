#include "daemon/image_visits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/test_eventually.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kVisitMayTake = absl::Seconds(60);

bool AlwaysReceived() { return true; }

TEST(ImageVisitsTest, AVisitWaitsUntilTheJobIsReadyAndTheJobUntilItHasItsMemory) {
  absl::Notification woken;
  ImageVisits visits([&] { woken.Notify(); });
  EXPECT_EQ(visits.WhichWaits(), 0u);
  const std::atomic<bool> cancelled{false};
  std::atomic<bool> began{false};
  std::thread caller([&] {
    uint64_t number = 0;
    EXPECT_TRUE(visits.Begin(AlwaysReceived, cancelled, &number).ok());
    began = true;
    visits.IsFrozen(number + 1);  // another's
    visits.IsFrozen(number);
  });
  ASSERT_TRUE(woken.WaitForNotificationWithTimeout(kVisitMayTake));
  const uint64_t visit = visits.WhichWaits();
  EXPECT_NE(visit, 0u);
  EXPECT_TRUE(visits.IsUnderWay(visit));
  EXPECT_FALSE(began);
  visits.LetFreeze(visit);
  EXPECT_EQ(visits.WhichWaits(), 0u) << "it is received";
  EXPECT_TRUE(visits.AwaitOver(visit, /*until_stored=*/false, kVisitMayTake));
  EXPECT_TRUE(began);
  EXPECT_TRUE(visits.HasImage(visit, /*until_stored=*/false));
  EXPECT_FALSE(visits.HasImage(visit, /*until_stored=*/true));
  EXPECT_FALSE(visits.AwaitOver(visit, /*until_stored=*/true, absl::ZeroDuration()));
  caller.join();
  visits.End(visit, /*stored=*/true);
  EXPECT_TRUE(visits.AwaitOver(visit, /*until_stored=*/true, absl::ZeroDuration()));
  EXPECT_TRUE(visits.HasImage(visit, /*until_stored=*/true));
  EXPECT_FALSE(visits.IsUnderWay(visit));
}

TEST(ImageVisitsTest, TheNextBeginsWhenTheOneBeforeHasEnded) {
  ImageVisits visits([] {});
  const std::atomic<bool> cancelled{false};
  uint64_t first = 0;
  {
    // Received, as it begins.
    std::thread job([&] {
      ASSERT_TRUE(Eventually([&] { return visits.WhichWaits() != 0; }));
      visits.LetFreeze(visits.WhichWaits());
    });
    EXPECT_TRUE(visits.Begin(AlwaysReceived, cancelled, &first).ok());
    job.join();
  }
  // Asked with each look: the second one has come to wait by the time of the second.
  std::atomic<int> looks{0};
  uint64_t second = 0;
  std::thread caller([&] {
    EXPECT_TRUE(visits
                    .Begin(
                        [&] {
                          ++looks;
                          return true;
                        },
                        cancelled, &second)
                    .ok());
  });
  EXPECT_TRUE(Eventually([&] { return looks >= 2; }));
  EXPECT_TRUE(visits.IsUnderWay(first));
  visits.End(first, /*stored=*/false);
  EXPECT_TRUE(Eventually([&] { return visits.WhichWaits() != 0; }));
  const uint64_t waits = visits.WhichWaits();
  EXPECT_NE(waits, first);
  visits.End(first, /*stored=*/true);  // late: it is no image of the next
  EXPECT_TRUE(visits.IsUnderWay(waits));
  visits.LetFreeze(waits);
  caller.join();
  EXPECT_EQ(second, waits);
  EXPECT_FALSE(visits.HasImage(first, /*until_stored=*/true));
}

TEST(ImageVisitsTest, NobodyWaitsForAJobThatReceivesNoneNorOnceItIsGivenUp) {
  ImageVisits visits([] {});
  const std::atomic<bool> no{false}, yes{true};
  uint64_t number = 7;
  EXPECT_TRUE(visits.Begin([] { return false; }, no, &number).ok());
  EXPECT_EQ(number, 0u);
  visits.End(number, /*stored=*/true);
  EXPECT_TRUE(absl::IsCancelled(visits.Begin(AlwaysReceived, yes, &number)));
  EXPECT_EQ(number, 0u);
}

}  // namespace
}  // namespace rekindle::daemon
