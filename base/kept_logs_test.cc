#include "base/kept_logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(KeptLogsTest, TheOldestOfTheirKindMakeRoom) {
  const auto folder = TemporaryDirectory::Make("/tmp", "rk-logs-").value();
  for (size_t i = 0; i < kMostKeptLogs + 2; ++i) {
    ASSERT_TRUE(MakeDirectories(absl::StrCat(folder.path(), "/failed-a-10", i, "-x")).ok());
  }
  ASSERT_TRUE(MakeDirectories(folder.path() + "/failed-b-1-x").ok());
  const std::string place = PlaceForLogs(folder.path(), "failed-a-", "/run/work-a-Zz9");
  EXPECT_THAT(place, StartsWith(folder.path() + "/failed-a-"));
  EXPECT_THAT(place, EndsWith("-Zz9"));
  EXPECT_FALSE(PathExists(place));
  ASSERT_TRUE(MakeDirectories(place).ok());
  const auto names = ListDirectory(folder.path()).value();
  EXPECT_THAT(names, SizeIs(kMostKeptLogs + 1));
  EXPECT_THAT(names, Contains("failed-b-1-x"));
  EXPECT_THAT(names, Contains("failed-a-109-x"));
  EXPECT_THAT(names, Not(Contains("failed-a-100-x")));
}

TEST(KeptLogsTest, AFolderThatIsMissingHasNoneToRemove) {
  EXPECT_THAT(PlaceForLogs("/no/such/folder", "failed-", "a-b"), StartsWith("/no/such/folder/failed-"));
}

}  // namespace
}  // namespace rekindle
