#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace rekindle {
namespace {

TEST(BoundedQueueTest, EveryItemArrivesOnceFromManyProducersToManyConsumers) {
  constexpr int kProducers = 3, kConsumers = 3, kItems = 1000;
  BoundedQueue<int> queue(4);
  std::vector<std::atomic<int>> seen(kProducers * kItems);
  std::vector<std::thread> producers, consumers;
  for (int c = 0; c < kConsumers; ++c) {
    consumers.emplace_back([&] {
      while (auto item = queue.Pop()) seen[static_cast<size_t>(*item)]++;
    });
  }
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kItems; ++i) ASSERT_TRUE(queue.Push(p * kItems + i));
    });
  }
  for (auto& t : producers) t.join();
  queue.Close();
  for (auto& t : consumers) t.join();
  for (auto& count : seen) EXPECT_EQ(count, 1);
}

TEST(BoundedQueueTest, CloseReleasesAProducerThatWaitsForRoom) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1));
  std::thread producer([&] { EXPECT_FALSE(queue.Push(2)); });
  queue.Close();
  producer.join();
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

}  // namespace
}  // namespace rekindle
