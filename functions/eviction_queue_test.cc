#include "functions/eviction_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace rekindle::functions {
namespace {

constexpr auto kNoneVoid = [](const EvictionQueue::Entry&) { return false; };

TEST(EvictionQueueTest, LeastWorthComesFirstAndEqualsByName) {
  EvictionQueue queue;
  for (uint32_t owner : {7u, 3u, 5u}) queue.Push({1.5, {ThingKind::kTemplate, owner}, 0}, kNoneVoid);
  queue.Push({0.5, {ThingKind::kTemplate, 9}, 0}, kNoneVoid);
  queue.Push({1.5, {ThingKind::kInstance, 6}, 0}, kNoneVoid);
  std::vector<uint32_t> order;
  for (; !queue.empty(); queue.Pop()) order.push_back(queue.Top().thing.owner);
  EXPECT_EQ(order, (std::vector<uint32_t>{9, 6, 3, 5, 7}));
}

TEST(EvictionQueueTest, VoidEntriesDoNotPileUp) {
  EvictionQueue queue;
  constexpr uint32_t kThings = 100;
  std::vector<uint32_t> versions(kThings, 0);
  auto is_void = [&](const EvictionQueue::Entry& entry) {
    return entry.version != versions[entry.thing.owner];
  };
  for (uint32_t i = 0; i < 100'000; ++i) {
    uint32_t owner = i % kThings;
    queue.Push({-static_cast<double>(i), {ThingKind::kInstance, owner}, ++versions[owner]}, is_void);
  }
  EXPECT_LE(queue.size(), 600u);
  // What counts is still there: of each thing the newest.
  uint32_t valid = 0;
  for (; !queue.empty(); queue.Pop()) valid += !is_void(queue.Top());
  EXPECT_EQ(valid, kThings);
}

}  // namespace
}  // namespace rekindle::functions
