#include "functions/thread_counts.h"

#include <gtest/gtest.h>

namespace rekindle::functions {
namespace {

TEST(ThreadCountsTest, AreByProcessors) {
  // 0: nobody knows how many there are.
  for (const unsigned few : {0u, 1u, 2u, 4u}) {
    EXPECT_EQ(ThreadCounts::For(few).http, 2) << few;
    EXPECT_EQ(ThreadCounts::For(few).starts, 5) << few;
  }
  EXPECT_EQ(ThreadCounts::For(24).http, 3);
  EXPECT_EQ(ThreadCounts::For(24).starts, 24);
  EXPECT_EQ(ThreadCounts::For(128).http, 16);
  EXPECT_EQ(ThreadCounts::For(128).starts, 32);
  EXPECT_EQ(ThreadCounts::For(~0u).http, 16);
}

TEST(ThreadCountsTest, OneOwnerNeverHasThemAll) {
  for (const unsigned processors : {1u, 2u, 16u, 128u}) {
    const ThreadCounts counts = ThreadCounts::For(processors);
    EXPECT_GT(counts.starts, 1);
    EXPECT_LT(counts.makers_of_one, counts.makers);
    EXPECT_LT(counts.clearers_of_one, counts.clearers);
  }
}

}  // namespace
}  // namespace rekindle::functions
