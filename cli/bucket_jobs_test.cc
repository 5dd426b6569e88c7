#include "cli/bucket_jobs.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
  EXPECT_THAT(JobsOf("[1] 2 {\"image\":[]} {\"image\":{\"digest\":3,\"labels\":4}}"), testing::IsEmpty());
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
