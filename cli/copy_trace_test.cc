#include "cli/copy_trace.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShownPlaceTest, PlacesAreAsTheyWereGiven) {
  for (const char* place :
       {"/mnt/a,b/images", "node2:7443", "rclone:s3:bucket/images", "rclone:/mnt/a,b", "rclone::local:/x,y"})
    EXPECT_EQ(ShownPlace(place), place);
}

TEST(ShownPlaceTest, SecretsOfARemoteAreLeftOut) {
  for (const std::string kind : {":s3", "far"}) {
    const std::string place =
        "rclone:" + kind + ",secret_access_key=\"a:b\",endpoint='http://h:1':bucket/images";
    const std::string shown = ShownPlace(place);
    EXPECT_THAT(shown,
                AllOf(HasSubstr("rclone:" + kind + ",…"), Not(HasSubstr("a:b")), Not(HasSubstr("secret"))));
    EXPECT_NE(shown, ShownPlace(place + "2"));
  }
}

}  // namespace
}  // namespace rekindle::cli
