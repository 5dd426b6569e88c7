#include "cli/bucket.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "cli/bucket_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Of a folder of this machine.
class BucketPutTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status there = bucket_.List("").status();
    if (absl::StrContains(there.message(), "there is no rclone")) GTEST_SKIP() << there;
    ASSERT_TRUE(there.ok()) << there;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names = ListDirectory(Folder()).value_or(std::vector<std::string>());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Folder() const { return absl::StrCat(folder_.path(), "/train"); }
  std::string Content(const std::string& name) const {
    return ReadFile(absl::StrCat(Folder(), "/", name)).value_or("(none)");
  }
  // rclone has begun to write it.
  void AwaitFiles(size_t count) const {
    for (const Deadline deadline(absl::Minutes(1)); Files().size() < count && !deadline.passed();)
      absl::SleepFor(absl::Milliseconds(5));
    ASSERT_THAT(Files(), SizeIs(count));
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/var/tmp", "bucket-").value();
  Bucket bucket_{folder_.path()};
  Bucket other_{folder_.path()};
};

TEST_F(BucketPutTest, TwoWhoPutTheSameDoNotWriteIntoOneFile) {
  BucketImage image;
  image.origin = std::string(32, 'a');
  image.tag = "7";
  const std::string name = image.ImageObject(), object = absl::StrCat("train/", name);
  // More than rclone gathers before it begins.
  const std::string one(1 << 20, '1'), another(1 << 20, '2');
  auto first = bucket_.Put(object, 2 * one.size());
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Write(one));
  AwaitFiles(1);
  // Until it is whole it is a copy that is on its way, to this version and to others.
  std::vector<BucketObject> objects = bucket_.List("train").value();
  EXPECT_THAT(BucketImages(objects).complete(), IsEmpty());
  EXPECT_THAT(BucketImages(objects).incomplete(), SizeIs(1));
  EXPECT_NE(Files(), std::vector<std::string>{name});

  auto second = other_.Put(object, another.size());
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE((*second)->Write(another));
  EXPECT_TRUE((*second)->Finish().ok());
  EXPECT_TRUE(Content(name) == another);
  EXPECT_THAT(Files(), SizeIs(2));

  // Who comes last has it as a whole, too.
  ASSERT_TRUE((*first)->Write(one));
  EXPECT_TRUE((*first)->Finish().ok());
  EXPECT_TRUE(Content(name) == one + one);
  EXPECT_THAT(Files(), ElementsAre(name));
}

TEST_F(BucketPutTest, OneThatIsGivenUpLeavesWhatIsThere) {
  auto whole = bucket_.Put("train/x.json", 3);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE((*whole)->Write("old"));
  ASSERT_TRUE((*whole)->Finish().ok());
  auto given_up = other_.Put("train/x.json", 2 << 20);
  ASSERT_TRUE(given_up.ok()) << given_up.status();
  ASSERT_TRUE((*given_up)->Write(std::string(1 << 20, 'n')));
  AwaitFiles(2);
  other_.Cancel();
  given_up->reset();
  EXPECT_THAT(Files(), ElementsAre("x.json"));
  EXPECT_EQ(Content("x.json"), "old");
}

}  // namespace
}  // namespace rekindle::cli
