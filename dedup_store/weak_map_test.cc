#include "dedup_store/weak_map.h"

#include <gtest/gtest.h>

#include <vector>

namespace rekindle::store {
namespace {

TEST(WeakMapTest, WhoAsksForTheSameGetsTheSame) {
  WeakMap<int, const int> map;
  EXPECT_EQ(map.Find(1), nullptr);
  auto first = map.Put(1, std::make_shared<const int>(10));
  EXPECT_EQ(map.Find(1), first);
  EXPECT_EQ(map.Put(1, std::make_shared<const int>(11)), first) << "another thread was faster";
  first.reset();
  EXPECT_EQ(map.Find(1), nullptr) << "nobody has it";
  const auto second = map.Put(1, std::make_shared<const int>(12));
  EXPECT_EQ(*map.Find(1), 12);
  map.Erase(1);
  EXPECT_EQ(map.Find(1), nullptr);
}

// As a daemon has it, which opens each image's pack once or twice, for years.
TEST(WeakMapTest, WhatNobodyHasTakesNoRoom) {
  WeakMap<int, const int> map;
  std::vector<std::shared_ptr<const int>> held;
  for (int i = 0; i < 200; ++i) held.push_back(map.Put(i, std::make_shared<const int>(i)));
  for (int i = 1000; i < 10'000; ++i) map.Put(i, std::make_shared<const int>(i));
  EXPECT_LE(map.size(), 2 * held.size());
  for (int i = 0; i < 200; ++i) EXPECT_EQ(map.Find(i), held[static_cast<size_t>(i)]);
}

}  // namespace
}  // namespace rekindle::store
