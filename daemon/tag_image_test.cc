// Second names of images: whose they are, and what they have of the first one's labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>

#include "daemon/node.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"
#include "daemon/test_users.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::store {
namespace {

using ::testing::HasSubstr;

using daemon::kAlice;
using daemon::kBob;

class TagImageTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    NewImageOptions image = Named("job:1");
    image.owner = kAlice;
    image.labels = {
        {v1::kJobIdLabel, "7 8"},    {v1::kJobNameLabel, "job"},        {v1::kJobMarkLabel, "job~1"},
        {v1::kSupervisedLabel, "1"}, {v1::kSupervisedNumberLabel, "3"}, {v1::kGroupIdLabel, "g"},
        {v1::kGroupLabel, "all:1"},  {v1::kConnectionLockLabel, "yes"}, {"mine", "1"}};
    content_.objects[kObject][0] = MakePages(20, 1);
    RK_ASSERT_OK(content_.Commit(*store_, image));
    NewImageOptions other = Named("bobs:1");
    other.owner = kBob;
    RK_ASSERT_OK(TestImage().Commit(*store_, other));
    daemon::NodeOptions options = daemon::TestNodeOptions(folder_->path());
    options.store = options_.path;
    node_ = std::make_unique<daemon::Node>(options);
  }

  absl::Status Tag(uid_t caller, const std::string& image, const std::string& reference, bool replace = false,
                   const std::map<std::string, std::string>& labels = {}) {
    daemon::Call call;
    call.caller.kind = daemon::Caller::Kind::kLocal;
    call.caller.uid = caller;
    v1::TagImageRequest request;
    request.set_image(image);
    request.set_reference(reference);
    request.set_replace(replace);
    for (const auto& [key, value] : labels) (*request.mutable_labels())[key] = value;
    v1::TagImageResponse response;
    return daemon::TagImage(*node_, call, request, &response);
  }

  TestImage content_;
  std::unique_ptr<daemon::Node> node_;
};

TEST_F(TagImageTest, ItBelongsToTheImagesOwnerWhoeverGivesIt) {
  RK_ASSERT_OK(Tag(kAlice, "job:1", "second:1"));
  RK_ASSERT_OK(Tag(::geteuid(), "job", "third:1"));
  for (const char* name : {"second:1", "third:1"}) EXPECT_EQ(store_->Find(name)->owner, kAlice) << name;
  EXPECT_TRUE(absl::IsPermissionDenied(Tag(kBob, "job:1", "bobs:2")));
  EXPECT_TRUE(absl::IsPermissionDenied(Tag(kAlice, "job:1", "bobs:1", /*replace=*/true)));
  EXPECT_EQ(store_->Find("bobs:1")->owner, kBob);
  RK_ASSERT_OK(Tag(::geteuid(), "job:1", "bobs:1", /*replace=*/true));
  content_.ExpectIn(*store_, "bobs:1");
}

TEST_F(TagImageTest, ItIsNoMembersAndNoSupervisors) {
  RK_ASSERT_OK(Tag(kAlice, "job:1", "second:1", false, {{"mine", "2"}, {"more", "x"}}));
  const std::map<std::string, std::string> expected = {{v1::kJobNameLabel, "job"},
                                                       {v1::kJobMarkLabel, "job~1"},
                                                       {v1::kConnectionLockLabel, "yes"},
                                                       {"mine", "2"},
                                                       {"more", "x"}};
  EXPECT_EQ(store_->Find("second:1")->labels, expected);
}

// The daemon would replace it by an image of its own without a word, or take it for one.
TEST_F(TagImageTest, NobodyHasANameOfFunctionsImages) {
  for (const char* name :
       {"functions/mine:r1", "functions/u1000/mine:r1", "deps/python3.11:numpy", "deps/mine"}) {
    const absl::Status refused = Tag(::geteuid(), "job:1", name);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("choose another one"));
  }
  for (const char* name : {"functions:1", "my/functions/x:1", "deps-of-mine:1"})
    RK_ASSERT_OK(Tag(kAlice, "job:1", name));
}

TEST_F(TagImageTest, NobodySaysWhatOnlyRekindleSays) {
  for (const char* label : {"rekindle.group", "rekindle.supervised-asked", "rekindle.job-mark",
                            "rekindle.origin", "rekindle.connection-lock"}) {
    const absl::Status refused = Tag(::geteuid(), "job:1", "second:1", false, {{label, "x"}});
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << label;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(label));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Tag(kAlice, "job:1", "job:1", /*replace=*/true)));
  EXPECT_EQ(store_->List()->size(), 2u);
}

}  // namespace
}  // namespace rekindle::store
