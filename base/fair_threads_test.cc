#include "base/fair_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace rekindle {
namespace {

using ::testing::ElementsAre;

TEST(FairThreadsTest, AnOwnerWhoseWorkHangsDoesNotStopOthers) {
  std::latch hanging(2), let_go(1), others(20);
  FairThreads threads(3, 2);
  for (int i = 0; i < 10; ++i) {
    threads.Post(1, [&, first = i < 2] {
      if (first) hanging.count_down();
      let_go.wait();
    });
  }
  hanging.wait();
  for (int i = 0; i < 20; ++i) threads.Post(2 + i % 3, [&] { others.count_down(); });
  others.wait();
  let_go.count_down();
}

TEST(FairThreadsTest, AnOwnerHasNoMoreThanItsShare) {
  std::atomic<int> at_once{0}, most{0};
  {
    FairThreads threads(4, 2);
    for (int i = 0; i < 200; ++i) {
      threads.Post(7, [&] {
        const int now = ++at_once;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
        std::this_thread::yield();
        --at_once;
      });
    }
  }
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 2);
}

TEST(FairThreadsTest, OwnersTakeTurns) {
  std::latch begun(1), let_go(1);
  std::vector<int> order;  // of the only thread
  {
    FairThreads threads(1, 1);
    threads.Post(0, [&] {
      begun.count_down();
      let_go.wait();
    });
    begun.wait();
    for (int i = 0; i < 3; ++i) threads.Post(1, [&order, i] { order.push_back(10 + i); });
    for (int i = 0; i < 2; ++i) threads.Post(2, [&order, i] { order.push_back(20 + i); });
    let_go.count_down();
  }
  EXPECT_THAT(order, ElementsAre(10, 20, 11, 21, 12));
}

TEST(FairThreadsTest, WhatWasPostedIsRunBeforeTheEnd) {
  std::atomic<int> done{0};
  FairThreads threads(2, 1);
  for (int i = 0; i < 50; ++i) {
    threads.Post(static_cast<FairThreads::Owner>(i % 7), [&, i] {
      ++done;
      // As the end of what was started does.
      if (i % 5 == 0) threads.Post(100, [&done] { ++done; });
    });
  }
  threads.Join();
  EXPECT_EQ(done, 60);
  threads.Post(1, [&done] { ++done; });
  threads.Join();
  EXPECT_EQ(done, 60);
}

TEST(FairThreadsTest, WhatTheWorkHoldsGoesWithIt) {
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> seen = held;
  std::latch next(1);
  FairThreads threads(1, 1);
  threads.Post(1, [held = std::move(held)] { EXPECT_EQ(*held, 1); });
  threads.Post(1, [&] {
    EXPECT_TRUE(seen.expired());
    next.count_down();
  });
  next.wait();
}

TEST(FairThreadsTest, WhatComesTooLateIsDestroyed) {
  FairThreads threads(1, 1);
  threads.Join();
  const auto held = std::make_shared<int>();
  threads.Post(0, [held] {});
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace rekindle
