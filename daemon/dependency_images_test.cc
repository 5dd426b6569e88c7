#include "daemon/dependency_images.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace rekindle::daemon {
namespace {

TEST(DependencyImagesTest, OneUserHasOnlySoManyMade) {
  const uid_t user = ::geteuid() + 4711, other = user + 1;
  std::vector<DependencyImage> images;
  auto add = [&](uid_t asked_by, std::vector<std::string> modules) {
    images.emplace_back().asked_by = asked_by;
    images.back().modules = std::move(modules);
  };
  add(user, {});  // what all others lie on
  while (images.size() < kMostDependencyImagesOfOne) add(user, {"json"});
  EXPECT_TRUE(MayHaveOneMore(images, user).ok());
  add(user, {"decimal"});
  const absl::Status refused = MayHaveOneMore(images, user);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("rekindle deps rm"), std::string::npos) << refused;
  EXPECT_TRUE(MayHaveOneMore(images, other).ok());
  for (int i = 0; i < 100; ++i) add(::geteuid(), {"json"});
  EXPECT_TRUE(MayHaveOneMore(images, ::geteuid()).ok());

  // Those with modules of layers count apart.
  EXPECT_TRUE(MayHaveOneMore(images, user, /*of_layers=*/true).ok());
  for (size_t i = 0; i < kMostDependencyImagesOfOne; ++i) {
    add(other, {"json"});
    images.back().layers = {std::string(64, '0')};
  }
  EXPECT_TRUE(MayHaveOneMore(images, other).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(MayHaveOneMore(images, other, /*of_layers=*/true)));
}

TEST(DependencyImagesTest, FunctionsOfOthersDoNotStartFromOneWithModulesOfLayers) {
  DependencyImage image;
  image.info.owner = 1000;
  EXPECT_TRUE(image.MayBeUsedBy(1001));
  image.layers = {std::string(64, '0')};
  EXPECT_TRUE(image.MayBeUsedBy(1000));
  EXPECT_FALSE(image.MayBeUsedBy(1001));
  EXPECT_FALSE(image.MayBeUsedBy(0));
}

}  // namespace
}  // namespace rekindle::daemon
