#include "cli/bucket_images.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kNanosOfSecond = 1'000'000'000;
constexpr absl::Time kUnfinishedBefore = absl::FromUnixSeconds(1000);

std::string Id(char digit) { return std::string(32, digit); }

// The image of that digit, taken so many seconds after 1970 as the digit says.
BucketImage Image(char origin, char base, uint64_t bytes, std::string tag) {
  BucketImage image;
  image.created_unix_ns = (origin - '0') * kNanosOfSecond;
  image.origin = Id(origin);
  if (base != 0) image.base = Id(base);
  image.tag = std::move(tag);
  image.bytes = bytes;
  return image;
}

// The objects of one name.
class Folder {
 public:
  Folder& Add(const BucketImage& image, bool complete = true) {
    objects_.push_back({image.ImageObject(), image.bytes, image.written});
    if (complete) objects_.push_back({image.JsonObject(), 500, image.written});
    return *this;
  }
  Folder& Add(const std::string& object) {
    objects_.push_back({object, 1, absl::InfinitePast()});
    return *this;
  }
  BucketImages Images() const { return BucketImages(objects_); }

  // Those that are left when the `keep` newest of these are kept, and `newest`.
  std::vector<std::string> Left(size_t keep, const std::set<std::string>& ours,
                                absl::string_view newest = "") const {
    const std::vector<std::string> removed = Images().Superfluous(
        keep, newest,
        [&](const BucketImage& image) {
          return ours.contains(image.origin) ? BucketImages::Claim::kCounted : BucketImages::Claim::kStays;
        },
        kUnfinishedBefore);
    std::vector<std::string> left;
    for (const BucketObject& object : objects_) {
      if (std::find(removed.begin(), removed.end(), object.name) == removed.end())
        left.push_back(object.name);
    }
    return left;
  }

 private:
  std::vector<BucketObject> objects_;
};

std::string Origins(const std::vector<BucketImage>& chain) {
  std::string digits;
  for (const BucketImage& image : chain) digits += image.origin[0];
  return digits;
}

TEST(BucketImagesTest, TheNamesOfObjectsTellTheImage) {
  BucketImage image = Image('1', 0, 0, "step-7_a.b");
  image.created_unix_ns = 1'795'000'000'123'456'000;
  const std::string stem = "20261118T110640.123456Z-" + Id('1') + "-whole-step-7_a.b";
  EXPECT_EQ(image.ImageObject(), stem + ".image");
  EXPECT_EQ(image.JsonObject(), stem + ".json");
  const BucketImages images = Folder().Add(image).Images();
  const BucketImage* found = images.Newest("step-7_a.b");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->created_unix_ns, image.created_unix_ns);
  EXPECT_EQ(found->origin, image.origin);
  EXPECT_EQ(found->base, "");
  EXPECT_EQ(IdOf("sha256:" + Id('a') + Id('b')), Id('a'));
}

TEST(BucketImagesTest, WhatIsNoImageOfOursIsLeftAlone) {
  const Folder folder =
      Folder()
          .Add("notes.txt")
          .Add("x.image")
          .Add("x.json")
          .Add("19700101T000001Z-" + Id('1') + "-whole-a.image")  // another form of the time
          .Add("19700101T000001.000000Z-" + Id('g') + "-whole-a.image")
          .Add("19700101T000001.000000Z-" + Id('1') + "-whole-.image");
  EXPECT_EQ(folder.Images().Newest(""), nullptr);
  EXPECT_EQ(folder.Left(1, {Id('1'), Id('g')}).size(), 6u);
}

TEST(BucketImagesTest, WhatIsIncompleteOrBuildsOnNothingIsNotThere) {
  const BucketImages images = Folder()
                                  .Add(Image('1', 0, 100, "a"))
                                  .Add(Image('2', '1', 10, "b"))
                                  .Add(Image('3', 'f', 10, "c"))         // its base is gone
                                  .Add(Image('4', '2', 10, "d"), false)  // was interrupted
                                  .Add(Image('6', '7', 10, "e"))         // in a circle
                                  .Add(Image('7', '6', 10, "f"))
                                  .Images();
  EXPECT_EQ(Origins(images.Chain(Id('2'))), "12");
  EXPECT_THAT(images.Chain(Id('3')), IsEmpty());
  EXPECT_THAT(images.Chain(Id('4')), IsEmpty());
  EXPECT_THAT(images.Chain(Id('6')), IsEmpty());
  ASSERT_NE(images.Newest(""), nullptr);
  EXPECT_EQ(images.Newest("")->tag, "b");
  EXPECT_EQ(images.Newest("a")->origin, Id('1'));
  EXPECT_EQ(images.Newest("c"), nullptr);
  EXPECT_TRUE(images.Has(Id('2'), "b"));
  EXPECT_FALSE(images.Has(Id('2'), "a"));
  EXPECT_FALSE(images.Has(Id('3'), "c"));
  EXPECT_THAT(images.Tags(), ElementsAre("b", "a"));
}

TEST(BucketImagesTest, OfTheSameTagTheNewestCounts) {
  const BucketImages images =
      Folder().Add(Image('1', 0, 100, "latest")).Add(Image('2', 0, 100, "latest")).Images();
  EXPECT_EQ(images.Newest("latest")->origin, Id('2'));
}

TEST(BucketImagesTest, ChainsEndSomewhere) {
  Folder by_length, by_bytes;
  by_length.Add(Image('0', 0, 1000, "0"));
  const std::string digits = "0123456789abcdef";
  for (size_t i = 1; i < digits.size(); ++i) {
    EXPECT_TRUE(by_length.Images().MayBuildUpon(Id(digits[i - 1]))) << i;
    by_length.Add(Image(digits[i], digits[i - 1], 1, "x"));
  }
  EXPECT_FALSE(by_length.Images().MayBuildUpon(Id('f')));
  by_bytes.Add(Image('0', 0, 1000, "0")).Add(Image('1', '0', 600, "1"));
  EXPECT_TRUE(by_bytes.Images().MayBuildUpon(Id('1')));
  by_bytes.Add(Image('2', '1', 600, "2"));
  EXPECT_FALSE(by_bytes.Images().MayBuildUpon(Id('2')));
  EXPECT_FALSE(by_bytes.Images().MayBuildUpon(Id('9')));
}

TEST(BucketImagesTest, WhatIsKeptKeepsWhatItBuildsUpon) {
  const BucketImage one = Image('1', 0, 100, "a"), two = Image('2', '1', 10, "b"),
                    three = Image('3', '2', 10, "c"), four = Image('4', 0, 100, "d");
  const Folder chain = Folder().Add(one).Add(two).Add(three);
  const std::set<std::string> ours = {Id('1'), Id('2'), Id('3'), Id('4')};
  EXPECT_EQ(chain.Left(1, ours).size(), 6u);
  // A whole one has followed.
  EXPECT_THAT(Folder(chain).Add(four).Left(1, ours),
              UnorderedElementsAre(four.ImageObject(), four.JsonObject()));
  EXPECT_EQ(Folder(chain).Add(four).Left(2, ours).size(), 8u);
  // Somebody else's image builds upon one of ours.
  EXPECT_EQ(Folder(chain).Add(four).Left(1, {Id('1'), Id('2'), Id('4')}).size(), 8u);
  EXPECT_EQ(Folder(chain).Add(four).Left(1, {}).size(), 8u);
}

TEST(BucketImagesTest, WhatWasInterruptedGoesIfItIsOursAndIsNotOnItsWay) {
  const BucketImage whole = Image('1', 0, 100, "a");
  BucketImage half = Image('2', 0, 50, "b"), on_its_way = Image('3', 0, 50, "c"),
              unknown = Image('4', 0, 50, "d");
  half.written = kUnfinishedBefore - absl::Seconds(1);
  on_its_way.written = kUnfinishedBefore;
  const Folder folder = Folder().Add(whole).Add(half, false).Add(on_its_way, false).Add(unknown, false);
  EXPECT_EQ(folder.Left(1, {Id('1')}).size(), 5u);
  EXPECT_THAT(folder.Left(1, {Id('1'), Id('2'), Id('3'), Id('4')}),
              UnorderedElementsAre(whole.ImageObject(), whole.JsonObject(), on_its_way.ImageObject(),
                                   unknown.ImageObject()));
}

TEST(BucketImagesTest, AnImageThatIsRemovedIsNoLongerCompleteFromTheFirstStepOn) {
  const Folder folder = Folder().Add(Image('1', 0, 100, "a")).Add(Image('2', 0, 100, "b"));
  EXPECT_THAT(
      folder.Images().Superfluous(
          1, Id('2'), [](const BucketImage&) { return BucketImages::Claim::kCounted; }, kUnfinishedBefore),
      ElementsAre(Image('1', 0, 100, "a").JsonObject(), Image('1', 0, 100, "a").ImageObject()));
}

TEST(BucketImagesTest, OfTwoNamesOfOneImageOneMayGo) {
  const BucketImage taken = Image('1', 0, 100, "taken"), milestone = Image('1', 0, 100, "milestone"),
                    last = Image('2', 0, 100, "last");
  const std::vector<std::string> superfluous =
      Folder().Add(taken).Add(milestone).Add(last).Images().Superfluous(
          1, Id('2'),
          [](const BucketImage& image) {
            return image.tag == "taken"       ? BucketImages::Claim::kGoes
                   : image.tag == "milestone" ? BucketImages::Claim::kStays
                                              : BucketImages::Claim::kCounted;
          },
          kUnfinishedBefore);
  EXPECT_THAT(superfluous, ElementsAre(taken.JsonObject(), taken.ImageObject()));
}

TEST(BucketImagesTest, WhatWasJustCopiedStaysWhateverTheClocksSay) {
  const BucketImage one = Image('1', '2', 10, "sent"), two = Image('2', 0, 100, "base"),
                    three = Image('3', 0, 100, "c");
  const std::set<std::string> ours = {Id('1'), Id('2'), Id('3')};
  const Folder folder = Folder().Add(one).Add(two).Add(three);
  EXPECT_THAT(folder.Left(1, ours, Id('1')),
              UnorderedElementsAre(one.ImageObject(), one.JsonObject(), two.ImageObject(), two.JsonObject()));
  EXPECT_EQ(folder.Left(2, ours, Id('1')).size(), 6u);
}

TEST(BucketImagesTest, WhatAnOlderVersionTookForAnImageIsNobodysNewest) {
  const BucketImage one = Image('1', 0, 100, "a"), stray = Image('2', 0, 100, "link-" + Id('2')),
                    upon = Image('3', '2', 10, "b"), named = Image('4', 0, 100, "link-" + Id('5'));
  EXPECT_EQ(Folder().Add(one).Add(stray).Images().Newest("")->tag, "a");
  EXPECT_THAT(Folder().Add(one).Add(stray).Images().Tags(), ElementsAre("a"));
  EXPECT_EQ(Folder().Add(one).Add(named).Images().Newest("")->tag, named.tag);
  EXPECT_EQ(Origins(Folder().Add(stray).Add(upon).Images().Chain(Id('3'))), "23");
  const std::set<std::string> ours = {Id('1'), Id('2'), Id('3')};
  EXPECT_THAT(Folder().Add(one).Add(stray).Left(1, ours),
              UnorderedElementsAre(one.ImageObject(), one.JsonObject()));
  EXPECT_EQ(Folder().Add(stray).Add(upon).Left(1, ours).size(), 4u);
}

BucketImage Part(char origin, char base, uint64_t bytes) {
  return Image(origin, base, bytes, "link-" + Id(origin));
}

TEST(BucketImagesTest, PartsAreOfTheImageThatBuildsUponThem) {
  Folder folder;
  const std::string digits = "0123456789abcdef";
  folder.Add(Part('0', 0, 100));
  for (size_t i = 1; i + 1 < digits.size(); ++i) folder.Add(Part(digits[i], digits[i - 1], 100));
  folder.Add(Image('f', 'e', 100, "image"));
  const BucketImages images = folder.Images();
  EXPECT_EQ(Origins(images.Chain(Id('f'))), digits);
  EXPECT_EQ(Origins(images.PartsOf(*images.Newest("image"))), "edcba9876543210");
  EXPECT_THAT(images.PartsOf(Part('e', 'd', 100)), IsEmpty());
  // A chain of one image, in which there may be as many bytes again.
  EXPECT_TRUE(images.MayBuildUpon(Id('f')));
  EXPECT_FALSE(images.MayBuildUpon(Id('e')));
}

TEST(BucketImagesTest, PartsGoWithTheirImageOrWhenNothingBecameOfThem) {
  BucketImage idle = Part('5', 0, 100), begun = Part('8', 0, 100), arriving = Part('6', '8', 100);
  idle.written = begun.written = kUnfinishedBefore - absl::Seconds(1);
  arriving.written = kUnfinishedBefore;
  const BucketImage part = Part('1', 0, 100), one = Image('2', '1', 10, "a"), upon = Part('3', '2', 100),
                    two = Image('4', '3', 10, "b"), whole = Image('7', 0, 100, "c");
  const Folder folder = Folder().Add(part).Add(one).Add(upon).Add(two).Add(idle).Add(begun).Add(arriving);
  const std::set<std::string> ours = {Id('2'), Id('4'), Id('7')};
  const std::vector<std::string> left = folder.Left(1, ours);
  EXPECT_EQ(left.size(), 12u);
  EXPECT_EQ(std::count(left.begin(), left.end(), idle.ImageObject()), 0);
  EXPECT_THAT(Folder(folder).Add(whole).Left(1, ours),
              UnorderedElementsAre(whole.ImageObject(), whole.JsonObject(), begun.ImageObject(),
                                   begun.JsonObject(), arriving.ImageObject(), arriving.JsonObject()));
}

TEST(BucketImagesTest, ManyImagesTakeLittleTime) {
  constexpr size_t kMany = 100'000;
  const auto id = [](size_t i) { return absl::StrCat(absl::Hex(i, absl::kZeroPad16), std::string(16, 'a')); };
  Folder folder;
  for (size_t i = 1; i <= kMany; ++i) {
    BucketImage image;
    image.created_unix_ns = static_cast<int64_t>(i) * kNanosOfSecond;
    image.origin = id(i);
    // One chain of all of them, whose beginning is missing: each has a long way to nothing.
    image.base = id(i - 1);
    image.tag = absl::StrCat(i);
    image.bytes = 1;
    folder.Add(image);
  }
  BucketImage whole;
  whole.origin = id(kMany + 1);
  whole.tag = "whole";
  folder.Add(whole);
  const BucketImages images = folder.Images();
  EXPECT_THAT(images.Tags(), ElementsAre("whole"));
  EXPECT_EQ(images.Newest("1"), nullptr);
  EXPECT_EQ(images.Newest("")->tag, "whole");
  EXPECT_EQ(
      images
          .Superfluous(
              1, "", [](const BucketImage&) { return BucketImages::Claim::kCounted; }, kUnfinishedBefore)
          .size(),
      2 * kMany);
}

}  // namespace
}  // namespace rekindle::cli
