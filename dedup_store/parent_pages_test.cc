// Pages that an image takes from its parent without having their bytes.
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kParentPages = 600;  // more than a frame, and of all kinds

class ParentPagesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    memory_ = MakePages(300, 1) + MakePages(100, 2, Content::kZero) + MakePages(200, 3, Content::kText);
    parent_.objects[kObject][0] = memory_;
    parent_.objects[kObject][kFar] = MakePages(3, 4);
    RK_ASSERT_OK(parent_.Commit(*store_, "job:1"));
  }

  absl::StatusOr<std::unique_ptr<ImageWriter>> Child(const std::string& parent = "job:1") {
    NewImageOptions options = Named("job:2");
    options.parent = parent;
    return store_->NewImage(options);
  }

  static constexpr uint64_t kFar = (kParentPages + 50) * kPageSize;
  std::string memory_;
  TestImage parent_;
};

TEST_F(ParentPagesTest, ImageIsTheSameAsOneThatWasGivenAllBytes) {
  std::string changed = memory_;
  const std::string fresh = MakePages(3, 9);
  changed.replace(70 * kPageSize, fresh.size(), fresh);
  changed.replace(350 * kPageSize, fresh.size(), fresh);

  auto child = Child();
  RK_ASSERT_OK(child);
  ImageWriter& writer = **child;
  EXPECT_EQ(writer.parent_digest(), store_->Find("job:1")->digest);
  auto add = [&](uint64_t from, uint64_t to) {
    ASSERT_TRUE(writer.ParentHas(kObject, from * kPageSize, to - from));
    RK_ASSERT_OK(writer.AddParentPages(kObject, from * kPageSize, to - from));
  };
  // Cuts in the middle of frames, and both kinds next to each other.
  add(0, 3);
  add(3, 70);
  RK_ASSERT_OK(writer.AddPages(kObject, 70 * kPageSize, Bytes(fresh)));
  add(73, 350);
  RK_ASSERT_OK(writer.AddPages(kObject, 350 * kPageSize, Bytes(fresh)));
  add(353, kParentPages);
  RK_ASSERT_OK(writer.AddBlob("note", "text"));
  auto info = writer.Commit();
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.logical_bytes, (kParentPages + 1) * kPageSize);
  EXPECT_EQ(info->stats.parent_bytes, (kParentPages - 100 - 3) * kPageSize);
  EXPECT_EQ(info->stats.zero_bytes, 97 * kPageSize);

  TestImage expected;
  expected.objects[kObject][0] = changed;
  expected.blobs["note"] = "text";
  expected.ExpectIn(*store_, "job:2");
  auto given_all = expected.Commit(*store_, "other:1", "job:1");
  RK_ASSERT_OK(given_all);
  EXPECT_EQ(given_all->digest, info->digest);
  ExpectWhole();

  // It needs nothing of its parent but the pages.
  RK_ASSERT_OK(store_->Remove("other:1"));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  Reopen();
  expected.ExpectIn(*store_, "job:2");
  ExpectWhole();
}

TEST_F(ParentPagesTest, GcWhileTheImageIsWrittenTakesNothingOfIt) {
  auto child = Child();
  RK_ASSERT_OK(child);
  RK_ASSERT_OK((*child)->AddParentPages(kObject, 0, kParentPages));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  RK_ASSERT_OK((*child)->Commit());
  TestImage expected;
  expected.objects[kObject][0] = memory_;
  expected.ExpectIn(*store_, "job:2");
  child->reset();
  RK_ASSERT_OK(store_->Gc({}));
  Reopen();
  expected.ExpectIn(*store_, "job:2");
  ExpectWhole();
}

TEST_F(ParentPagesTest, WhatTheParentHasNotIsRefused) {
  auto child = Child();
  RK_ASSERT_OK(child);
  ImageWriter& writer = **child;
  EXPECT_TRUE(writer.ParentHas(kObject, kFar, 3));
  EXPECT_FALSE(writer.ParentHas(kObject, kFar, 4));
  EXPECT_FALSE(writer.ParentHas(kObject, kFar - kPageSize, 2));
  EXPECT_FALSE(writer.ParentHas(kObject, (kParentPages - 1) * kPageSize, 60)) << "there is a gap";
  EXPECT_FALSE(writer.ParentHas("mem/2", 0, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.AddParentPages(kObject, (kParentPages - 1) * kPageSize, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.AddParentPages(kObject, 5, 1)));
  RK_ASSERT_OK(writer.AddParentPages(kObject, kFar, 3));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.AddParentPages(kObject, 0, 1))) << "addresses ascend";
  RK_ASSERT_OK(writer.AddBlob("blob", "text"));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.AddParentPages("blob", 0, 1)));
  RK_ASSERT_OK(writer.Commit());
  TestImage expected;
  expected.objects[kObject][kFar] = parent_.objects[kObject][kFar];
  expected.blobs["blob"] = "text";
  expected.ExpectIn(*store_, "job:2");
}

TEST_F(ParentPagesTest, WithoutAParentThereIsNothingToTake) {
  auto child = Child("");
  RK_ASSERT_OK(child);
  EXPECT_EQ((*child)->parent_digest(), "");
  EXPECT_FALSE((*child)->ParentHas(kObject, 0, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition((*child)->AddParentPages(kObject, 0, 1)));
}

}  // namespace
}  // namespace rekindle::store
