#include "base/number_claim.h"

#include <fcntl.h>

#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

TEST(NumberClaimTest, OneHasIt) {
  auto folder = TemporaryDirectory::Make("/tmp", "claims-");
  ASSERT_TRUE(folder.ok());
  const auto open = [&] { return OpenFile(folder->path() + "/claims", O_RDWR | O_CREAT, 0600).value(); };
  const UniqueFd other = open();
  {
    const UniqueFd first = open();
    EXPECT_TRUE(ClaimNumber(first, 12));
    EXPECT_TRUE(ClaimNumber(first, 13));
    EXPECT_TRUE(ClaimNumber(first, 12)) << "its own";
    EXPECT_FALSE(ClaimNumber(other, 12));
    EXPECT_TRUE(ClaimNumber(other, 14));
    EXPECT_TRUE(ClaimNumber(first, 15, 0xf0000001) && ClaimNumber(other, 15) &&
                ClaimNumber(other, 15, 0xf0000002));
    EXPECT_FALSE(ClaimNumber(other, 15, 0xf0000001));
  }
  EXPECT_TRUE(ClaimNumber(other, 12));
}

}  // namespace
}  // namespace rekindle
