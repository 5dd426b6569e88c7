#include "daemon/waiting_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kFirstUser = 1000, kSecondUser = 1001;

TEST(WaitingEventsTest, AreBoundedByTheirNumber) {
  WaitingEvents waiting({.all = 4, .of_one = 2, .bytes = 1000, .bytes_of_one = 1000});
  EXPECT_TRUE(waiting.Add(kFirstUser, 1).ok());
  EXPECT_TRUE(waiting.Add(kFirstUser, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(waiting.Add(kFirstUser, 1)));
  EXPECT_EQ(waiting.refusals().of_one, 1u);
  EXPECT_TRUE(waiting.Add(kSecondUser, 1).ok());
  EXPECT_TRUE(waiting.Add(0, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(waiting.Add(kSecondUser, 1))) << "of all";
  EXPECT_EQ(waiting.refusals().all, 1u);
  waiting.Remove(kFirstUser, 1);
  EXPECT_TRUE(waiting.Add(kFirstUser, 1).ok());
}

TEST(WaitingEventsTest, AreBoundedByWhatTheyHold) {
  WaitingEvents waiting({.all = 100, .of_one = 100, .bytes = 1000, .bytes_of_one = 400});
  EXPECT_TRUE(waiting.Add(kFirstUser, 400).ok());
  const absl::Status refused = waiting.Add(kFirstUser, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("400 B"));
  EXPECT_TRUE(waiting.Add(0, 600).ok()) << "root has all that is left";
  EXPECT_TRUE(absl::IsResourceExhausted(waiting.Add(kSecondUser, 1)));
  waiting.Remove(0, 600);
  waiting.Remove(kFirstUser, 400);
  EXPECT_TRUE(waiting.Add(kFirstUser, 400).ok()) << "nothing is left of those before";
  EXPECT_EQ(waiting.refusals().of_one, 1u);
  EXPECT_EQ(waiting.refusals().all, 1u);
}

}  // namespace
}  // namespace rekindle::daemon
