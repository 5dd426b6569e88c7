#include "dedup_store/second_name.h"

#include <gmock/gmock.h>

#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

using ::testing::HasSubstr;

class SecondNameTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    image_.objects[kObject][0] =
        MakePages(300, 1) + MakePages(100, 2, Content::kZero) + MakePages(200, 3, Content::kText);
    image_.objects[kObject][uint64_t{700} * kPageSize] = MakePages(3, 4);
    image_.objects["mem/2"][0] = MakePages(40, 5, Content::kZero);
    image_.blobs["note"] = "text";
    image_.blobs["large"] = MakePages(90, 6);
    image_.blobs["empty"] = "";
    auto info = image_.Commit(*store_, "job:1");
    RK_ASSERT_OK(info);
    first_ = *info;
  }

  absl::StatusOr<ImageInfo> Tag(const std::string& reference, bool replace = false, uid_t owner = 0) {
    SecondNameOptions options;
    options.reference = reference;
    options.replace = replace;
    options.owner = owner;
    options.labels = {{"keep", "yes"}};
    return AddSecondName(*store_, first_, options);
  }

  TestImage image_;
  ImageInfo first_;
};

TEST_F(SecondNameTest, IsTheSameImageAndTakesNoRoomForItsPages) {
  const uint64_t before = store_->Stats()->pack_bytes;
  auto tag = Tag("best:1");
  RK_ASSERT_OK(tag);
  EXPECT_EQ(tag->reference, "best:1");
  EXPECT_EQ(tag->digest, first_.digest);
  EXPECT_EQ(tag->labels.at("keep"), "yes");
  EXPECT_EQ(tag->stats.logical_bytes, first_.stats.logical_bytes);
  EXPECT_EQ(tag->stats.new_bytes, 0u);
  EXPECT_EQ(tag->stats.stored_bytes, 0u);
  EXPECT_LT(store_->Stats()->pack_bytes - before, 64u << 10);
  image_.ExpectIn(*store_, "best:1");
}

TEST_F(SecondNameTest, EitherCanGoAndTheOtherStaysWhole) {
  RK_ASSERT_OK(Tag("best:1"));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  Reopen();
  image_.ExpectIn(*store_, "best:1");
  first_ = *store_->Find("best:1");
  RK_ASSERT_OK(Tag("again:1"));
  RK_ASSERT_OK(store_->Remove("best:1"));
  RK_ASSERT_OK(store_->Gc({}));
  image_.ExpectIn(*store_, "again:1");
  ExpectWhole();
  RK_ASSERT_OK(store_->Remove("again:1"));
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_EQ(store_->Stats()->pack_bytes, 0u);
}

TEST_F(SecondNameTest, HasWhatWasNotedOfTheFirst) {
  RK_ASSERT_OK(store_->PutNote(first_, kWorkingSetNote, "what was touched"));
  RK_ASSERT_OK(Tag("best:1"));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_EQ(*store_->GetNote(first_.digest, kWorkingSetNote), "what was touched");
}

TEST_F(SecondNameTest, ANameThatIsTakenIsTakenOverWhenThatIsAskedForAlone) {
  TestImage other;
  other.blobs["other"] = "text";
  RK_ASSERT_OK(other.Commit(*store_, "best:1"));
  const absl::Status refused = Tag("best:1").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--replace"));
  other.ExpectIn(*store_, "best:1");
  EXPECT_EQ(Tag("best:1", /*replace=*/true, /*owner=*/1000).status().code(),
            absl::StatusCode::kPermissionDenied);
  RK_ASSERT_OK(Tag("best:1", /*replace=*/true));
  image_.ExpectIn(*store_, "best:1");
  EXPECT_EQ(Tag("Best:1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SecondNameTest, WhatIsGoneOrWasCancelledLeavesNothing) {
  const std::atomic<bool> cancelled{true};
  SecondNameOptions options;
  options.reference = "best:1";
  options.cancel = &cancelled;
  EXPECT_EQ(AddSecondName(*store_, first_, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->List()->size(), 1u);
  RK_ASSERT_OK(store_->Remove("job:1"));
  EXPECT_EQ(Tag("best:1").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_->List()->empty());
}

}  // namespace
}  // namespace rekindle::store
