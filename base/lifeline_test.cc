#include "base/lifeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace rekindle {
namespace {

struct Object {
  ~Object() { lifeline.Cut(); }
  int number = 7;
  Lifeline<Object> lifeline{this};
};

TEST(LifelineTest, ACallbackFindsTheObjectUntilItHasGone) {
  auto object = std::make_unique<Object>();
  const auto end = object->lifeline.end();
  {
    auto use = end.Hold();
    ASSERT_TRUE(use);
    EXPECT_EQ(use->number, 7);
    EXPECT_EQ(&*use, object.get());
  }
  object.reset();
  EXPECT_FALSE(end.Hold());
}

TEST(LifelineTest, TheEndWaitsForThoseThatUseItAndAdmitsNobodyMore) {
  auto object = std::make_unique<Object>();
  const auto end = object->lifeline.end();
  std::optional<Lifeline<Object>::Use> use(end.Hold());
  ASSERT_TRUE(*use);
  std::atomic<bool> ended = false;
  std::thread owner([&] {
    object.reset();
    ended = true;
  });
  while (end.Hold()) std::this_thread::yield();  // its end has begun
  EXPECT_FALSE(ended);
  EXPECT_EQ((*use)->number, 7);
  use.reset();
  owner.join();
  EXPECT_TRUE(ended);
}

TEST(LifelineTest, WhatWasMovedFromHoldsNothing) {
  auto object = std::make_unique<Object>();
  auto first = std::make_optional(object->lifeline.end().Hold());
  auto second = std::make_optional(*std::move(first));
  EXPECT_FALSE(*first);
  EXPECT_TRUE(*second);
  second.reset();
  object.reset();  // would wait for ever
}

TEST(LifelineTest, ManyCallbacksWhileItEnds) {
  for (int round = 0; round < 200; ++round) {
    auto object = std::make_unique<Object>();
    absl::Notification go;
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&go, end = object->lifeline.end()] {
        go.WaitForNotification();
        while (auto use = end.Hold()) EXPECT_EQ(use->number, 7);
      });
    }
    go.Notify();
    object.reset();
    for (std::thread& caller : callers) caller.join();
  }
}

}  // namespace
}  // namespace rekindle
