#include "cli/bucket_jobs.h"

#include <sys/stat.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "cli/copy_source.h"
#include "cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Digest(char digit) { return absl::StrCat("sha256:", std::string(64, digit)); }
std::string IdFrom(char digit) { return std::string(32, digit); }

// As it is put into a bucket.
std::string Marker(char digit, const std::string& label, const std::string& job) {
  v1::TransferResult result;
  result.mutable_image()->set_reference("job:}{\"");
  result.mutable_image()->set_digest(Digest(digit));
  if (!label.empty()) (*result.mutable_image()->mutable_labels())[label] = job;
  return ToJson(result);
}

TEST(BucketJobsTest, MarkersTellTheJobs) {
  v1::TransferResult copy;
  copy.mutable_image()->set_digest(Digest('9'));
  auto& labels = *copy.mutable_image()->mutable_labels();
  labels[v1::kOriginLabel] = Digest('4');
  labels[v1::kJobMarkLabel] = "job+1";
  labels[v1::kJobIdLabel] = "process";
  const std::string markers = absl::StrCat(Marker('1', v1::kJobMarkLabel, "job+1"), Marker('2', "", ""), "\n",
                                           Marker('3', v1::kJobIdLabel, "process"), ToJson(copy));
  EXPECT_THAT(JobsOf(markers), UnorderedElementsAre(Pair(IdFrom('1'), "job+1"), Pair(IdFrom('3'), "process"),
                                                    Pair(IdFrom('4'), "job+1")));
  EXPECT_THAT(JobsOf(markers + "{\"image\":"), testing::SizeIs(3));
  // What is damaged hides nothing of the others.
  const std::string whole = Marker('1', v1::kJobMarkLabel, "job+1"),
                    cut_off = Marker('2', v1::kJobMarkLabel, "job+2").substr(0, 60);
  for (const std::string& said : {cut_off + whole, "{}\n" + cut_off + "\n" + whole, "not JSON" + whole + "{",
                                  absl::StrCat(cut_off, cut_off, std::string(3, '\0'), whole, cut_off)})
    EXPECT_THAT(JobsOf(said), UnorderedElementsAre(Pair(IdFrom('1'), "job+1"))) << said;
  EXPECT_THAT(JobsOf("[1] 2 {\"image\":[]} {\"image\":{\"digest\":3,\"labels\":4}}"), testing::IsEmpty());
}

TEST(BucketJobsTest, EachIsAskedOnce) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/var/tmp", "bucket-").value();
  Bucket bucket(folder.path());
  if (const absl::Status there = bucket.List("").status();
      absl::StrContains(there.message(), "there is no rclone"))
    GTEST_SKIP() << there;
  ASSERT_EQ(::mkdir(absl::StrCat(folder.path(), "/job").c_str(), 0700), 0);
  std::vector<BucketImage> images;
  const auto put = [&](char digit, const std::string& marker) {
    BucketImage& image = images.emplace_back();
    image.origin = IdFrom(digit);
    image.tag = "}{\"";
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(folder.path(), "/job/", image.JsonObject()), marker).ok());
  };
  put('1', Marker('1', v1::kJobMarkLabel, "job+1"));
  put('2', "{\"image\":");
  put('3', Marker('4', v1::kJobMarkLabel, "job+4"));  // of another one
  put('5', Marker('5', v1::kJobMarkLabel, "job+5"));
  BucketMarkers markers;
  ASSERT_TRUE(markers.Read(bucket, "job", images, 3).ok());
  ASSERT_NE(markers.Find(KeyOf(images[0])), nullptr);
  EXPECT_EQ(JobOf(*markers.Find(KeyOf(images[0]))), "job+1");
  for (const char digit : {'2', '3', '4', '5'})
    EXPECT_EQ(markers.Find({IdFrom(digit), "}{\""}), nullptr) << digit;
  // Those that were asked in vain are not asked again in the place of others.
  ASSERT_TRUE(markers.Read(bucket, "job", images, 1).ok());
  EXPECT_NE(markers.Find(KeyOf(images[3])), nullptr);
}

// Of images whose jobs these are, newest first.
std::string RivalOf(absl::string_view jobs) {
  std::vector<BucketImage> images;
  std::map<std::string, std::string> job_of;
  for (char job : jobs) {
    BucketImage image;
    image.origin = IdFrom(static_cast<char>('a' + images.size()));
    image.tag = absl::StrCat(images.size());
    if (job != '?') job_of[image.origin] = std::string(1, job);
    images.push_back(std::move(image));
  }
  const BucketImage* rival = NewestOfRival(images, job_of);
  return rival == nullptr ? "" : rival->tag;
}

TEST(BucketJobsTest, ThoseThatRanAtTheSameTimeAreRivals) {
  EXPECT_EQ(RivalOf(""), "");
  EXPECT_EQ(RivalOf("aaa"), "");
  EXPECT_EQ(RivalOf("aabb"), "");  // one after the other
  EXPECT_EQ(RivalOf("aba"), "1");
  EXPECT_EQ(RivalOf("abbab"), "1");
  EXPECT_EQ(RivalOf("abcac"), "1");
  EXPECT_EQ(RivalOf("a?a"), "");
  EXPECT_EQ(RivalOf("?aba"), "");
}

}  // namespace
}  // namespace rekindle::cli
