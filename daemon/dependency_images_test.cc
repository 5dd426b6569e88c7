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
}

}  // namespace
}  // namespace rekindle::daemon
