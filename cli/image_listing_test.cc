#include "cli/image_listing.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/bucket_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string OriginId(char digit) { return std::string(32, digit); }

class ListedObjectsTest : public ::testing::Test {
 protected:
  // Taken so many seconds after 1970 as `origin` says.
  void Add(const std::string& name, char origin, char base, const std::string& tag, bool complete = true) {
    BucketImage image;
    image.created_unix_ns = absl::ToInt64Nanoseconds(absl::Seconds(origin - '0'));
    image.origin = OriginId(origin);
    if (base != 0) image.base = OriginId(base);
    image.tag = tag;
    objects_.push_back({absl::StrCat(name, "/", image.ImageObject()), 100});
    if (complete) objects_.push_back({absl::StrCat(name, "/", image.JsonObject()), 5});
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::Image& image : ImagesOfObjects(objects_))
      names.push_back(absl::StrCat(image.reference(), image.damaged() ? " damaged" : ""));
    return names;
  }

  std::vector<BucketObject> objects_;
};

TEST_F(ListedObjectsTest, OfAllNamesTheNewestFirst) {
  Add("train", '1', 0, "a");
  Add("team/web", '2', 0, "v1");
  Add("train", '3', '1', "b");
  EXPECT_THAT(Names(), ElementsAre("train:b", "team/web:v1", "train:a"));
  const v1::Image newest = ImagesOfObjects(objects_).front();
  EXPECT_EQ(newest.created_unix_ns(), 3'000'000'000);
  EXPECT_EQ(newest.stored_bytes(), 100u);
  EXPECT_EQ(newest.labels().at(v1::kOriginLabel), "sha256:" + OriginId('3'));
}

TEST_F(ListedObjectsTest, WhatIsNotCompleteOrNotOursIsNoImage) {
  Add("train", '1', 0, "a", /*complete=*/false);
  objects_.push_back({"train/notes.json", 1});
  objects_.push_back({"at-the-top.image", 1});
  objects_.push_back({"/x.image", 1});
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(ListedObjectsTest, WhatCantBeHadIsMarked) {
  Add("train", '2', '1', "b");
  Add("train", '3', 0, "c");
  EXPECT_THAT(Names(), ElementsAre("train:c", "train:b damaged"));
}

TEST_F(ListedObjectsTest, OfOneNameTheOneThatACopyTakes) {
  Add("train", '1', 0, "latest");
  Add("train", '2', 0, "latest");
  Add("train", '4', '3', "latest");
  const std::vector<v1::Image> images = ImagesOfObjects(objects_);
  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].labels().at(v1::kOriginLabel), "sha256:" + OriginId('2'));
  EXPECT_FALSE(images[0].damaged());
}

TEST_F(ListedObjectsTest, LinksOfAnOlderVersionAreLeftOut) {
  Add("train", '1', 0, "link-" + OriginId('1'));
  Add("train", '2', '1', "b");
  EXPECT_THAT(Names(), ElementsAre("train:b"));
}

}  // namespace
}  // namespace rekindle::cli
