#include "daemon/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(CheckStoreTest, AFolderThatIsALink) {
  const auto folder = TemporaryDirectory::Make(testing::TempDir(), "rk_doctor_test.");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string notes = folder->path() + "/notes";
  ASSERT_EQ(::mkdir(notes.c_str(), 0700), 0);
  EXPECT_THAT(CheckStore(folder->path(), absl::OkStatus()).detail(), Not(HasSubstr("symbolic link")));
  ASSERT_EQ(::rmdir(notes.c_str()), 0);
  ASSERT_EQ(::symlink("/elsewhere", notes.c_str()), 0);
  const v1::Check check = CheckStore(folder->path(), absl::OkStatus());
  // Unless there is less room than is worth a warning of its own.
  if (absl::StrContains(check.cure(), "rekindle gc")) GTEST_SKIP() << check.detail();
  EXPECT_EQ(check.result(), v1::Check::WARNING);
  EXPECT_THAT(check.detail(), HasSubstr(notes + " is a symbolic link"));
  EXPECT_THAT(check.cure(), AllOf(HasSubstr("stop rekindled"), HasSubstr("rm " + notes),
                                  HasSubstr("mount --bind"), HasSubstr("/etc/fstab")));
  EXPECT_THAT(check.cure(), Not(HasSubstr("chmod")));
  // That comes first where others may write to it.
  ASSERT_EQ(::chmod(folder->path().c_str(), 0777), 0);
  const v1::Check open = CheckStore(folder->path(), absl::OkStatus());
  EXPECT_THAT(open.detail(), ContainsRegex("others may write to .*notes is a symbolic link"));
  EXPECT_THAT(open.cure(), ContainsRegex("^chmod go-w .*rm "));
}

TEST(CheckStoreTest, OthersWhoMayWriteToIt) {
  const auto folder = TemporaryDirectory::Make(testing::TempDir(), "rk_doctor_test.");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string packs = folder->path() + "/packs";
  ASSERT_EQ(::mkdir(packs.c_str(), 0700), 0);
  EXPECT_THAT(CheckStore(folder->path(), absl::OkStatus()).detail(), Not(HasSubstr("others may write")));
  ASSERT_EQ(::chmod(packs.c_str(), 0777), 0);
  const v1::Check check = CheckStore(folder->path(), absl::OkStatus());
  // Unless there is less room than is worth a warning of its own.
  if (absl::StrContains(check.cure(), "rekindle gc")) GTEST_SKIP() << check.detail();
  EXPECT_EQ(check.result(), v1::Check::WARNING);
  EXPECT_THAT(check.detail(), HasSubstr("others may write to " + packs));
  EXPECT_EQ(check.cure(), "chmod go-w " + packs);
}

}  // namespace
}  // namespace rekindle::daemon
