// Which images a list has: by what is in their names, of one name alone, and no more than are wanted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"
#include "daemon/test_users.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/copy_link.h"

namespace rekindle::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ImageListTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    // As older versions of copy left what another image builds upon, under the job's name.
    const std::string digits(v1::kCopyLinkDigits, 'a');
    for (const std::string& reference :
         {std::string("train:1"), std::string("train-10:1"), std::string("train:2"),
          std::string("my/train:1"), absl::StrCat("train:", v1::kStrayCopyLinkTag, digits)}) {
      NewImageOptions image = Named(reference);
      image.owner = daemon::kAlice;
      if (reference.size() > digits.size()) image.labels[v1::kOriginLabel] = absl::StrCat("sha256:", digits);
      RK_ASSERT_OK(TestImage().Commit(*store_, image));
    }
    NewImageOptions of_bob = Named("train:bobs");
    of_bob.owner = daemon::kBob;
    RK_ASSERT_OK(TestImage().Commit(*store_, of_bob));
    daemon::NodeOptions options = daemon::TestNodeOptions(folder_->path());
    options.store = options_.path;
    node_ = std::make_unique<daemon::Node>(options);
  }

  std::vector<std::string> List(const std::string& text, const std::string& name, uint32_t newest) {
    daemon::Call call;
    call.caller.kind = daemon::Caller::Kind::kLocal;
    call.caller.uid = daemon::kAlice;
    v1::ListImagesRequest request;
    request.set_name_contains(text);
    request.set_name(name);
    request.set_newest(newest);
    v1::ListImagesResponse response;
    EXPECT_TRUE(daemon::ListImages(*node_, call, request, &response).ok());
    std::vector<std::string> references;
    for (const v1::Image& image : response.images()) references.push_back(image.reference());
    return references;
  }

  std::unique_ptr<daemon::Node> node_;
};

TEST_F(ImageListTest, OfOneNameNewestFirst) {
  EXPECT_THAT(List("", "train", 0), ElementsAre("train:2", "train:1"));
  EXPECT_THAT(List("train:", "train", 1), ElementsAre("train:2"));
  EXPECT_THAT(List("", "train-1", 1), IsEmpty());
  EXPECT_THAT(List(":1", "train", 1), ElementsAre("train:1"));
}

TEST_F(ImageListTest, WhoAsksForTextAloneGetsAll) {
  EXPECT_EQ(List("", "", 0).size(), 5u);
  EXPECT_EQ(List("train:", "", 0).size(), 4u);
  EXPECT_THAT(List("train", "", 2).size(), 2u);
}

}  // namespace
}  // namespace rekindle::store
