#include "restore/answer_patience.h"

#include <gtest/gtest.h>

namespace rekindle::restore {
namespace {

TEST(AnswerPatienceTest, AFewTimesWhatIsUsual) {
  AnswerPatience patience;
  EXPECT_EQ(patience.Limit(), AnswerPatience::kFirst);
  patience.Answered(absl::Milliseconds(500));
  EXPECT_EQ(patience.Limit(), absl::Seconds(5));
  patience.Answered(absl::Seconds(1));  // a rise counts at once
  EXPECT_EQ(patience.Limit(), absl::Seconds(10));
  patience.Answered(absl::Milliseconds(200));
  EXPECT_EQ(patience.Limit(), absl::Seconds(9));
  for (int i = 0; i < 50; ++i) patience.Answered(absl::Milliseconds(300));
  EXPECT_LT(patience.Limit(), absl::Milliseconds(3100));
  EXPECT_GE(patience.Limit(), absl::Seconds(3));
}

TEST(AnswerPatienceTest, WithinBounds) {
  AnswerPatience patience;
  patience.Answered(absl::ZeroDuration());
  EXPECT_EQ(patience.Limit(), AnswerPatience::kLeast);
  patience.Answered(absl::Minutes(5));
  EXPECT_EQ(patience.Limit(), AnswerPatience::kMost);
}

}  // namespace
}  // namespace rekindle::restore
