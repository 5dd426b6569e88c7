#include "daemon/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiBytes = 1ULL << 30;

store::StoreStats Disk(uint64_t total, uint64_t used) {
  store::StoreStats stats;
  stats.file_system = {total, used, total - used};
  return stats;
}

TEST(CheckRoomTest, AMarkThatIsReachedThoughMuchIsFree) {
  const v1::Check check = CheckRoom("/s", Disk(4000 * kGiBytes, 3840 * kGiBytes), {});
  EXPECT_EQ(check.result(), v1::Check::WARNING);
  EXPECT_THAT(check.detail(), AllOf(HasSubstr("every new image is refused"), HasSubstr("95 %")));
  EXPECT_NE(check.cure(), "");
}

TEST(CheckRoomTest, LittleIsSaidBeforeItIsTooLate) {
  EXPECT_EQ(CheckRoom("/s", Disk(4000 * kGiBytes, 3000 * kGiBytes), {}).result(), v1::Check::OK);
  v1::Check check = CheckRoom("/s", Disk(4000 * kGiBytes, 3700 * kGiBytes), {});
  EXPECT_EQ(check.result(), v1::Check::WARNING);
  EXPECT_THAT(check.detail(), HasSubstr("only 100"));
  EXPECT_EQ(CheckRoom("/s", Disk(20 * kGiBytes, 18 * kGiBytes), {}).result(), v1::Check::WARNING);
}

TEST(CheckRoomTest, TheNearestLimitCounts) {
  store::StoreLimits limits;
  limits.store_max_bytes = 100 * kGiBytes;
  store::StoreStats stats = Disk(4000 * kGiBytes, 1000 * kGiBytes);
  stats.pack_bytes = 50 * kGiBytes;
  EXPECT_THAT(CheckRoom("/s", stats, limits).detail(), HasSubstr("50.0 GiB more"));
  EXPECT_EQ(CheckRoom("/s", stats, limits).result(), v1::Check::OK);
  stats.metadata_bytes = 46 * kGiBytes;
  EXPECT_EQ(CheckRoom("/s", stats, limits).result(), v1::Check::WARNING);
  stats.metadata_bytes = 50 * kGiBytes;
  EXPECT_THAT(CheckRoom("/s", stats, limits).detail(), HasSubstr("every new image is refused"));
  limits.store_max_bytes = 0;
  limits.high_water_percent = 0;
  EXPECT_THAT(CheckRoom("/s", stats, limits).detail(), HasSubstr("2.9 TiB more"));
}

}  // namespace
}  // namespace rekindle::daemon
