// Pages that an image takes from its parent without having their bytes, or has no bytes of.
#include <cstdlib>
#include <fstream>

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

// As somebody else's image stream may tell of them, in a few bytes.
TEST_F(ParentPagesTest, ZerosWithoutEndTakeNoMemory) {
  constexpr uint64_t kZeros = uint64_t{3} << 30, kEnd = kZeros * kPageSize;  // 12 TiB
  const auto most_memory = [] {
    const std::string status = ReadFile("/proc/self/status").value();
    return std::strtoull(status.c_str() + status.find("VmHWM:") + 6, nullptr, 10) << 10;
  };
  std::ofstream("/proc/self/clear_refs") << "5";
  const uint64_t before = most_memory();
  const std::string page = MakePages(1, 1), small = MakePages(2, 2);
  for (const uint64_t coming : {uint64_t{0}, kPageSize}) {
    NewImageOptions options = Named("zeros:1");
    options.replace = true;
    options.coming_bytes = coming;
    auto writer = store_->NewImage(options);
    RK_ASSERT_OK(writer);
    RK_ASSERT_OK((*writer)->AddPages("m", 0, Bytes(small)));
    RK_ASSERT_OK((*writer)->AddZeroPages("m", 2 * kPageSize, kZeros - 2));
    RK_ASSERT_OK((*writer)->AddPages("m", kEnd, Bytes(page)));
    RK_ASSERT_OK((*writer)->AddBlob("b", "a blob"));
    EXPECT_FALSE((*writer)->AddZeroPages("m", kEnd + kPageSize, uint64_t{1} << 40).ok())
        << "16 TiB are the most";
    EXPECT_FALSE((*writer)->AddZeroPages("m", kEnd, 1).ok()) << "there is one";
    auto info = (*writer)->Commit();
    RK_ASSERT_OK(info);
    EXPECT_EQ(info->stats.zero_bytes, (kZeros - 2) * kPageSize);
    EXPECT_EQ(info->stats.logical_bytes, (kZeros + 2) * kPageSize) << "with that of the blob";

    options.reference = "zeros:2";
    options.parent = "zeros:1";
    writer = store_->NewImage(options);
    RK_ASSERT_OK(writer);
    RK_ASSERT_OK((*writer)->AddParentPages("m", 0, kZeros + 1));
    RK_ASSERT_OK((*writer)->AddBlob("b", "a blob"));
    auto child = (*writer)->Commit();
    RK_ASSERT_OK(child);
    EXPECT_EQ(child->digest, info->digest);
    EXPECT_EQ(child->stats.zero_bytes, info->stats.zero_bytes);
    EXPECT_EQ(child->stats.new_bytes, 0u);
    auto reader = store_->OpenImage("zeros:2");
    RK_ASSERT_OK(reader);
    const std::vector<PageRun> runs = (*reader)->Runs("m").value();
    ASSERT_EQ(runs.size(), 3u);
    EXPECT_TRUE(runs[1].zero);
    EXPECT_EQ(runs[1].pages, kZeros - 2);
    std::string end(2 * kPageSize, 'x');
    RK_ASSERT_OK(
        (*reader)->ReadPages("m", kEnd - kPageSize, {reinterpret_cast<std::byte*>(end.data()), end.size()}));
    EXPECT_EQ(end, MakePages(1, 0, Content::kZero) + page);
  }
  EXPECT_LT(most_memory() - before, 256 * kMiB);
  ExpectWhole();
}

}  // namespace
}  // namespace rekindle::store
