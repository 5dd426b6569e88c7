#include "daemon/owners_at_work.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/test_users.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kForAll = absl::Seconds(30);

TEST(OwnersAtWorkTest, TheLastOneTidiesUp) {
  std::vector<uid_t> tidied;
  OwnersAtWork owners([&](uid_t owner) { tidied.push_back(owner); });
  std::optional<OwnersAtWork::Work> first, second, other;
  first.emplace(owners, kAlice);
  second.emplace(owners, kAlice);
  other.emplace(owners, kBob);
  first.reset();
  owners.TidyUnlessAtWork(kAlice);
  EXPECT_TRUE(tidied.empty());
  second.reset();
  EXPECT_EQ(tidied, std::vector<uid_t>{kAlice});
  owners.TidyUnlessAtWork(kAlice);
  EXPECT_EQ(tidied, (std::vector<uid_t>{kAlice, kAlice}));
  other.reset();
  EXPECT_EQ(tidied, (std::vector<uid_t>{kAlice, kAlice, kBob}));
}

TEST(OwnersAtWorkTest, OneThatIsSlowHoldsUpNobodyElse) {
  absl::Notification began, may_end, ended;
  OwnersAtWork owners([&](uid_t owner) {
    if (owner != kAlice || began.HasBeenNotified()) return;
    began.Notify();
    may_end.WaitForNotification();
    ended.Notify();
  });
  std::thread slow([&] { const OwnersAtWork::Work work(owners, kAlice); });
  began.WaitForNotification();
  absl::Notification others;
  std::thread other([&] {
    { const OwnersAtWork::Work work(owners, kBob); }
    owners.TidyUnlessAtWork(kBob);
    others.Notify();
  });
  EXPECT_TRUE(others.WaitForNotificationWithTimeout(kForAll));
  // His own work begins when that has been done, and so does tidying once more: something may have changed.
  bool was_over = false;
  std::thread again([&] {
    const OwnersAtWork::Work work(owners, kAlice);
    was_over = ended.HasBeenNotified();
  });
  may_end.Notify();
  slow.join();
  again.join();
  EXPECT_TRUE(was_over);
  other.join();
}

}  // namespace
}  // namespace rekindle::daemon
