#include "restore/descriptor_share.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace rekindle::restore {
namespace {

// How many processes each of the clones has that fork in turn until none of them may any more.
uint64_t UntilNoneMay(uint64_t limit, uint64_t clones) {
  std::vector<uint64_t> own(clones, 1);
  uint64_t all = clones;
  for (bool more = true; more;) {
    more = false;
    for (uint64_t& processes : own) {
      if (processes + 1 > ShareOfDescriptors(limit, all + 1, clones)) continue;
      ++processes;
      ++all;
      more = true;
    }
  }
  return all;
}

TEST(DescriptorShareTest, OneTakesNoMoreThanItLeaves) {
  EXPECT_NEAR(static_cast<double>(UntilNoneMay(1024, 1)), 446, 1);
}

TEST(DescriptorShareTest, HoweverManyForkSomeStayFree) {
  for (uint64_t clones : {2, 10, 100}) {
    const uint64_t limit = 65536, held = UntilNoneMay(limit, clones);
    EXPECT_GT(limit - held, limit / 8 + limit / (clones + 3)) << clones;
  }
}

TEST(DescriptorShareTest, AFewAreAlwaysAllowed) {
  EXPECT_EQ(ShareOfDescriptors(64, 1000, 10), kProcessesInAnyCase);
  EXPECT_EQ(ShareOfDescriptors(0, 0, 0), kProcessesInAnyCase);
  EXPECT_FALSE(IsCrowded(kProcessesInAnyCase / 2, kProcessesInAnyCase));
}

TEST(DescriptorShareTest, WithoutALimit) {
  const uint64_t share = ShareOfDescriptors(std::numeric_limits<uint64_t>::max(), 1'000'000, 1000);
  EXPECT_GT(share, uint64_t{1} << 60);
  EXPECT_FALSE(IsCrowded(1'000'000, share));
}

}  // namespace
}  // namespace rekindle::restore
