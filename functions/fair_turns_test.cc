#include "functions/fair_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace rekindle::functions {
namespace {

constexpr FairTurns::Owner kAlice = 1, kBob = 2, kCarol = 3;

TEST(FairTurnsTest, OneOwnersTurnLeavesAnotherToTheOthers) {
  FairTurns turns(2, 1);
  std::optional<FairTurns::Turn> alice(turns.Take(kAlice));
  absl::Notification has_second;
  std::thread second([&] {
    const FairTurns::Turn turn = turns.Take(kAlice);
    has_second.Notify();
  });
  { const FairTurns::Turn bob = turns.Take(kBob); }  // would wait for ever otherwise
  EXPECT_FALSE(has_second.HasBeenNotified());
  alice.reset();
  second.join();
  EXPECT_TRUE(has_second.HasBeenNotified());
}

TEST(FairTurnsTest, WhoGivesUpWaitingIsInNobodysWay) {
  FairTurns turns(1, 1);
  std::optional<FairTurns::Turn> alice(turns.Take(kAlice));
  EXPECT_FALSE(turns.TakeUnless(kBob, [] { return true; }).has_value());
  EXPECT_EQ(turns.waiting(), 0u);
  alice.reset();
  const FairTurns::Turn carol = turns.Take(kCarol);  // would wait for ever for Bob's otherwise
}

TEST(FairTurnsTest, NoMoreAtOnceThanThereAre) {
  FairTurns turns(2, 2);
  absl::Mutex mutex;
  int at_once = 0, most = 0;
  std::vector<std::thread> threads;
  for (FairTurns::Owner owner = 0; owner < 12; ++owner) {
    threads.emplace_back([&, owner] {
      for (int i = 0; i < 50; ++i) {
        const FairTurns::Turn turn = turns.Take(owner % 3);
        {
          absl::MutexLock lock(&mutex);
          most = std::max(most, ++at_once);
        }
        std::this_thread::yield();
        absl::MutexLock lock(&mutex);
        --at_once;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(at_once, 0);
  EXPECT_LE(most, 2);
}

TEST(FairTurnsTest, WhoHadHisLastTurnLongestAgoGoesFirst) {
  FairTurns turns(1, 1);
  std::vector<FairTurns::Owner> order;  // of whoever has the turn
  std::optional<FairTurns::Turn> first(turns.Take(kAlice));
  std::vector<std::thread> threads;
  auto ask = [&](FairTurns::Owner owner) {
    const size_t waiting = turns.waiting();
    threads.emplace_back([&, owner] {
      const FairTurns::Turn turn = turns.Take(owner);
      order.push_back(owner);
    });
    while (turns.waiting() == waiting) std::this_thread::yield();
  };
  for (FairTurns::Owner owner : {kAlice, kAlice, kBob, kBob, kCarol}) ask(owner);
  first.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(order, testing::ElementsAre(kBob, kCarol, kAlice, kBob, kAlice));
}

}  // namespace
}  // namespace rekindle::functions
