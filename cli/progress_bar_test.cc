#include "cli/progress_bar.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr size_t kWide = 200;

v1::Progress Half(const char* phase) {
  v1::Progress progress;
  progress.set_phase(phase);
  progress.set_bytes_done(2 * kGiB);
  progress.set_bytes_total(4 * kGiB);
  progress.set_elapsed_seconds(100);
  progress.set_phase_seconds(2);
  return progress;
}

TEST(ProgressBar, ShowsShareBytesAndTheRateOfThisPhase) {
  EXPECT_EQ(ProgressBar::Line(Half("commit"), kWide),
            "commit    [############------------]  50 %  2.0 GiB of 4.0 GiB, 1.0 GiB/s");
}

TEST(ProgressBar, NamesTheGpu) {
  v1::Progress progress = Half("gpu");
  progress.add_devices("GPU-11111111-1111-4111-8111-111111111111");
  EXPECT_THAT(ProgressBar::Line(progress, kWide),
              EndsWith("1.0 GiB/s  GPU-11111111-1111-4111-8111-111111111111"));
  progress.add_devices("GPU-22222222-2222-4222-8222-222222222222");
  EXPECT_THAT(ProgressBar::Line(progress, kWide), EndsWith("1.0 GiB/s  2 GPUs"));
}

TEST(ProgressBar, HasNoRateAtFirstAndNoShareOfAnUnknownSum) {
  v1::Progress progress = Half("freeze");
  progress.set_bytes_total(0);
  progress.set_phase_seconds(0.01);
  EXPECT_EQ(ProgressBar::Line(progress, kWide), "freeze    2.0 GiB");
  progress.set_phase_seconds(1);
  EXPECT_THAT(ProgressBar::Line(progress, kWide), HasSubstr("2.0 GiB/s"));
  EXPECT_THAT(ProgressBar::Line(progress, kWide), Not(HasSubstr("%")));
}

TEST(ProgressBar, FitsTheTerminal) { EXPECT_EQ(ProgressBar::Line(Half("commit"), 20).size(), 20u); }

}  // namespace
}  // namespace rekindle::cli
