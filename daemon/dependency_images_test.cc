#include "daemon/dependency_images.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"

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
    // On an image of his own anybody may have written that another one has asked for it.
    add(user, {"json"});
    images.back().info.owner = other;
    images.back().layers = {std::string(64, '0')};
  }
  EXPECT_TRUE(MayHaveOneMore(images, other).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(MayHaveOneMore(images, other, /*of_layers=*/true)));
  EXPECT_TRUE(MayHaveOneMore(images, user, /*of_layers=*/true).ok());
}

TEST(DependencyImagesTest, AnImageOfAUserPosesAsNoOther) {
  const uid_t user = ::geteuid() + 4711;
  const std::string digest(64, '0'), run_as = absl::StrCat(user, ":100");
  const auto reference_of = [&](uid_t owner) {
    return absl::StrCat("deps/u", owner, "/python:decimal-",
                        absl::Hex(StableHash("decimal\n\n" + digest + "\n\n" + run_as), absl::kZeroPad16));
  };
  store::ImageInfo info;
  info.owner = user;
  info.labels = {{"rekindle.deps.runtime", "python"},
                 {"rekindle.deps.modules", "decimal"},
                 {"rekindle.deps.layers", digest},
                 {"rekindle.deps.of-layers", "decimal"},
                 {"rekindle.deps.run-as", run_as}};
  info.reference = reference_of(user);
  const auto image = DependencyImageFrom(info);
  ASSERT_TRUE(image);
  EXPECT_FALSE(image->is_shared());
  EXPECT_EQ(image->layers, std::vector<std::string>{digest});
  EXPECT_EQ(image->of_layers, std::vector<std::string>{"decimal"});
  // As another user's, or as one that is shared.
  for (const std::string& reference : {reference_of(user + 1), std::string("deps/python:decimal")}) {
    info.reference = reference;
    EXPECT_FALSE(DependencyImageFrom(info)) << reference;
  }
  info.labels.erase("rekindle.deps.layers");
  EXPECT_FALSE(DependencyImageFrom(info));
  info.owner = ::geteuid();
  EXPECT_TRUE(DependencyImageFrom(info)->is_shared());
  info.reference = reference_of(user);
  EXPECT_FALSE(DependencyImageFrom(info));
  // Layers are found by their digests, and by nothing else.
  info.owner = user;
  info.labels["rekindle.deps.layers"] = "../../x";
  info.reference = absl::StrCat("deps/u", user, "/python:decimal-",
                                absl::Hex(StableHash("decimal\n\n../../x\n\n" + run_as), absl::kZeroPad16));
  EXPECT_FALSE(DependencyImageFrom(info));
}

TEST(DependencyImagesTest, OnlyWhatIsKnownToHaveNothingDrawnServesThoseWhoAskForOtherModules) {
  store::ImageInfo info;
  info.owner = ::geteuid();
  info.labels = {{"rekindle.deps.runtime", "python"}, {"rekindle.deps.modules", "decimal"}};
  info.reference = "deps/python:decimal";
  EXPECT_TRUE(DependencyImageFrom(info)->MayHaveDrawn()) << "an earlier Rekindle made it";
  info.labels["rekindle.deps.drawn"] = "";
  EXPECT_FALSE(DependencyImageFrom(info)->MayHaveDrawn());
  info.labels["rekindle.deps.drawn"] = "decimal: os.urandom";
  EXPECT_TRUE(DependencyImageFrom(info)->MayHaveDrawn());
  info.labels["rekindle.deps.modules"] = "";
  info.reference = "deps/python:bare";
  EXPECT_FALSE(DependencyImageFrom(info)->MayHaveDrawn()) << "everything lies on it";
}

TEST(DependencyImagesTest, FunctionsOfOthersDoNotStartFromOneWithModulesOfLayers) {
  DependencyImage image;
  image.info.owner = 1000;
  EXPECT_TRUE(image.MayBeUsedBy({1001, 100, {}}));
  image.layers = {std::string(64, '0')};
  image.run_as = "1000:100:27";
  EXPECT_TRUE(image.MayBeUsedBy({1000, 100, {27}}));
  EXPECT_FALSE(image.MayBeUsedBy({1001, 100, {27}}));
  EXPECT_FALSE(image.MayBeUsedBy({0, 0, {}}));
  // The process would go on having a group that its owner has left.
  EXPECT_FALSE(image.MayBeUsedBy({1000, 100, {}}));
  EXPECT_FALSE(image.MayBeUsedBy({1000, 101, {27}}));
}

}  // namespace
}  // namespace rekindle::daemon
