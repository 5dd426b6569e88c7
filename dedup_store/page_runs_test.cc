#include "dedup_store/page_runs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rekindle::store {
namespace {

TEST(PageRuns, AreThePagesThatWereAdded) {
  constexpr uint32_t kPagesOfPack = 2000;
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    PageRuns runs;
    std::vector<bool> expected(kPagesOfPack, false);
    for (int i = 0; i < 40 * round; ++i) {
      const uint32_t first = random() % kPagesOfPack;
      const uint32_t end = std::min<uint32_t>(kPagesOfPack, first + random() % 8);
      runs.Add(first, end);
      for (uint32_t page = first; page < end; ++page) expected[page] = true;
      if (i % 97 == 0) runs.Merged();
    }
    std::vector<bool> found(kPagesOfPack, false);
    uint32_t next = 0;
    for (const PageRuns::Run& run : runs.Merged()) {
      EXPECT_TRUE(run.first >= next && run.first < run.end);
      for (uint32_t page = run.first; page < run.end; ++page) found[page] = true;
      next = run.end + 1;
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PageRuns, TakeNoMoreMemoryThanThePagesThereAre) {
  PageRuns runs;
  for (int image = 0; image < 1000; ++image) {
    for (uint32_t page = 0; page < 200; page += 2) runs.Add(page, page + 1);
  }
  EXPECT_LE(runs.held(), 2 * 100u);
  EXPECT_EQ(runs.Merged().size(), 100u);
}

}  // namespace
}  // namespace rekindle::store
