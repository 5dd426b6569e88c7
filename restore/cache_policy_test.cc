#include "restore/cache_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/sanitized.h"

namespace rekindle::restore {
namespace {

using store::FrameId;

FrameId Key(uint64_t number) { return {number / 100 + 1, static_cast<uint32_t>(number % 100)}; }
uint32_t BytesOf(const FrameId& key) { return 4096 * (1 + (key.frame * 7 + key.pack) % 32); }
bool Anything(const FrameId&) { return true; }

// Numbers that are asked for in proportion to 1 / rank^skew.
std::vector<FrameId> ZipfTrace(size_t keys, double skew, size_t length, uint32_t seed) {
  std::vector<double> sums(keys);
  double sum = 0;
  for (size_t i = 0; i < keys; ++i) sums[i] = sum += 1 / std::pow(static_cast<double>(i + 1), skew);
  std::mt19937_64 random(seed);
  std::vector<FrameId> trace;
  while (trace.size() < length) {
    const double at = static_cast<double>(random() >> 11) * 0x1.0p-53 * sum;
    trace.push_back(Key(std::lower_bound(sums.begin(), sums.end(), at) - sums.begin()));
  }
  return trace;
}

// How many requests of a trace a cache of this size would answer.
size_t HitsOfS3Fifo(const std::vector<FrameId>& trace, uint64_t capacity) {
  CachePolicy policy(capacity);
  size_t hits = 0;
  for (const FrameId& key : trace) {
    if (policy.Contains(key)) {
      ++hits;
      policy.Touch(key);
      continue;
    }
    while (policy.bytes() + BytesOf(key) > capacity) EXPECT_TRUE(policy.Evict(Anything).has_value());
    policy.Insert(key, BytesOf(key));
  }
  return hits;
}

size_t HitsOfQueue(const std::vector<FrameId>& trace, uint64_t capacity, bool to_front_when_used) {
  std::list<FrameId> queue;
  std::map<FrameId, std::list<FrameId>::iterator> places;
  uint64_t bytes = 0;
  size_t hits = 0;
  for (const FrameId& key : trace) {
    if (auto found = places.find(key); found != places.end()) {
      ++hits;
      if (to_front_when_used) queue.splice(queue.begin(), queue, found->second);
      continue;
    }
    for (; bytes + BytesOf(key) > capacity; queue.pop_back()) {
      bytes -= BytesOf(queue.back());
      places.erase(queue.back());
    }
    queue.push_front(key);
    places[key] = queue.begin();
    bytes += BytesOf(key);
  }
  return hits;
}

TEST(CachePolicy, AnswersMoreOfASkewedTraceThanLruAndFifo) {
  uint64_t all = 0;
  for (uint64_t i = 0; i < 5000; ++i) all += BytesOf(Key(i));
  for (double skew : {0.8, 1.0, 1.2}) {
    if (kSanitized && skew != 1.0) continue;
    const std::vector<FrameId> trace = ZipfTrace(5000, skew, 100000, 1);
    for (uint64_t part : {50, 10}) {
      const size_t ours = HitsOfS3Fifo(trace, all / part);
      EXPECT_GT(ours, HitsOfQueue(trace, all / part, true)) << "LRU, skew " << skew << ", 1/" << part;
      EXPECT_GT(ours, HitsOfQueue(trace, all / part, false)) << "FIFO, skew " << skew << ", 1/" << part;
    }
  }
}

TEST(CachePolicy, AScanLeavesWhatIsUsedOften) {
  constexpr uint64_t kCapacity = 400 * 4096;
  CachePolicy policy(kCapacity);
  auto use = [&](uint64_t number) {
    if (policy.Contains(Key(number))) {
      policy.Touch(Key(number));
      return;
    }
    while (policy.bytes() + 4096 > kCapacity) ASSERT_TRUE(policy.Evict(Anything).has_value());
    policy.Insert(Key(number), 4096);
  };
  for (int round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 200; ++i) use(i);
  }
  for (uint64_t i = 0; i < 20000; ++i) use(1000 + i);
  size_t left = 0;
  for (uint64_t i = 0; i < 200; ++i) left += policy.Contains(Key(i));
  EXPECT_EQ(left, 200u);
}

TEST(CachePolicy, WhatComesBackSoonGoesToTheMainQueue) {
  CachePolicy policy(100 * 4096);
  for (uint64_t i = 0; i < 100; ++i) policy.Insert(Key(i), 4096);
  EXPECT_EQ(policy.main_bytes(), 0u);
  EXPECT_EQ(policy.Evict(Anything), Key(0));
  EXPECT_EQ(policy.ghost_bytes(), 4096u);
  policy.Insert(Key(0), 4096);
  EXPECT_EQ(policy.main_bytes(), 4096u);
  EXPECT_EQ(policy.ghost_bytes(), 0u);
  EXPECT_EQ(policy.Hot(10), std::vector<FrameId>{Key(0)});
}

TEST(CachePolicy, RemembersNoMoreThanTheMainQueueHolds) {
  CachePolicy policy(100 * 4096);
  for (uint64_t i = 0; i < 1000; ++i) {
    if (policy.bytes() == 100 * 4096) policy.Evict(Anything);
    policy.Insert(Key(i), 4096);
    EXPECT_LE(policy.ghost_bytes(), 90u * 4096);
  }
  EXPECT_EQ(policy.ghost_bytes(), 90u * 4096);
}

TEST(CachePolicy, WhatIsInUseStays) {
  CachePolicy policy(20 * 4096);
  for (uint64_t i = 0; i < 20; ++i) policy.Insert(Key(i), 4096, /*proven=*/i % 2 == 0);
  for (uint64_t i = 0; i < 20; ++i) {
    for (uint64_t uses = i % 4; uses > 0; --uses) policy.Touch(Key(i));
  }
  std::set<FrameId> gone;
  while (auto key = policy.Evict([](const FrameId& id) { return id.frame >= 5; })) gone.insert(*key);
  EXPECT_EQ(gone.size(), 15u);
  EXPECT_EQ(policy.size(), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(policy.Contains(Key(i)));
  EXPECT_EQ(policy.bytes(), 5u * 4096);
}

TEST(CachePolicy, TheMostUsedIsTheHottest) {
  CachePolicy policy(1000 * 4096);
  for (uint64_t i = 0; i < 5; ++i) policy.Insert(Key(i), 4096);
  policy.Touch(Key(3));
  policy.Touch(Key(1));
  policy.Touch(Key(1));
  policy.Insert(Key(7), 4096, /*proven=*/true);
  EXPECT_EQ(policy.Hot(10), (std::vector<FrameId>{Key(1), Key(3), Key(7)}));
  EXPECT_EQ(policy.Hot(1), std::vector<FrameId>{Key(1)});
}

TEST(CachePolicy, CountsEveryByte) {
  CachePolicy policy(50 * 4096);
  std::map<FrameId, uint32_t> there;
  std::mt19937 random(5);
  for (int step = 0; step < 20000; ++step) {
    const FrameId key = Key(random() % 200);
    switch (random() % 4) {
      case 0:
        if (there.contains(key)) policy.Touch(key);
        break;
      case 1:
        policy.Remove(key);
        there.erase(key);
        break;
      case 2:
        if (auto gone = policy.Evict([&](const FrameId& id) { return id.frame % 3 != 0; })) {
          EXPECT_NE(gone->frame % 3, 0u);
          EXPECT_EQ(there.erase(*gone), 1u);
        }
        break;
      default:
        if (there.contains(key)) break;
        there[key] = BytesOf(key);
        policy.Insert(key, BytesOf(key), random() % 5 == 0);
    }
    uint64_t bytes = 0;
    for (const auto& [id, size] : there) bytes += size;
    ASSERT_EQ(policy.bytes(), bytes);
    ASSERT_EQ(policy.small_bytes() + policy.main_bytes(), bytes);
    ASSERT_EQ(policy.size(), there.size());
  }
}

}  // namespace
}  // namespace rekindle::restore
