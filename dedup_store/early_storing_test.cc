// Images whose pages are stored while more of them come: NewImageOptions::coming_bytes.
#include <filesystem>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class EarlyStoringTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    memory_ = MakePages(kComing / 2, 1) + MakePages(100, 2, Content::kZero) +
              MakePages(kComing / 2 - 100, 3, Content::kText);
  }

  absl::StatusOr<std::unique_ptr<ImageWriter>> Coming(const std::string& reference,
                                                      const std::string& parent = "") {
    NewImageOptions options = Named(reference);
    options.parent = parent;
    options.coming_bytes = memory_.size();
    return store_->NewImage(options);
  }

  size_t Packs() const {
    size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(options_.path + "/packs"))
      count += file.is_regular_file();
    return count;
  }

  static constexpr size_t kComing = 3000;  // pages, some slices
  static constexpr uint64_t kFar = 100000 * kPageSize;
  std::string memory_;
};

TEST_F(EarlyStoringTest, ImageIsWhatAnotherOneIsToo) {
  TestImage image;
  image.objects["a"][0] = memory_;
  image.objects["b"][kFar] = MakePages(5, 4) + memory_.substr(0, 40 * kPageSize);  // of it, once more
  image.blobs["small"] = "a blob";
  image.blobs["large"] = std::string(3 << 20, 'b');
  NewImageOptions options = Named("job:1");
  options.coming_bytes = 1;  // more comes than was said
  auto early = image.Commit(*store_, options);
  RK_ASSERT_OK(early);
  EXPECT_EQ(early->stats.shared_bytes % kPageSize, 0u);
  EXPECT_GE(early->stats.shared_bytes, 40 * kPageSize);
  EXPECT_EQ(early->stats.logical_bytes,
            early->stats.zero_bytes + early->stats.shared_bytes + early->stats.new_bytes);
  image.ExpectIn(*store_, "job:1");
  // Every page of it is found by one that is stored all at once.
  auto late = image.Commit(*store_, "job:2");
  RK_ASSERT_OK(late);
  EXPECT_EQ(late->stats.new_bytes, 0u);
  EXPECT_EQ(late->stats.logical_bytes, early->stats.logical_bytes);
  image.ExpectIn(*store_, "job:2");
  ExpectWhole();
}

TEST_F(EarlyStoringTest, PagesOfTheParentAndObjectsThatTakeTurns) {
  TestImage parent;
  parent.objects["a"][0] = memory_;
  RK_ASSERT_OK(parent.Commit(*store_, "job:1"));
  TestImage image = parent;
  const std::string fresh = MakePages(30, 9), other = MakePages(60, 10);
  image.objects["a"][0].replace(700 * kPageSize, fresh.size(), fresh);
  image.objects["b"][0] = other;
  auto writer = Coming("job:2", "job:1");
  RK_ASSERT_OK(writer);
  const absl::string_view now = image.objects["a"][0];
  RK_ASSERT_OK((*writer)->AddParentPages("a", 0, 600));
  RK_ASSERT_OK((*writer)->AddPages("b", 0, Bytes(other).subspan(0, 30 * kPageSize)));
  RK_ASSERT_OK((*writer)->AddPages("a", 600 * kPageSize, Bytes(now.substr(600 * kPageSize))));
  RK_ASSERT_OK((*writer)->AddPages("b", 30 * kPageSize, Bytes(other).subspan(30 * kPageSize)));
  auto info = (*writer)->Commit();
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.new_bytes, fresh.size() + other.size());
  image.ExpectIn(*store_, "job:2");
  ExpectWhole();
}

TEST_F(EarlyStoringTest, NobodyWaitsForPagesOnTheirWayAndAllIsFoundAgain) {
  auto writer = Coming("slow:1");
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages(kObject, 0, Bytes(memory_)));
  // What another image brings meanwhile, some of which is on its way.
  TestImage other;
  other.objects[kObject][0] = memory_;
  other.objects[kObject][kFar] = MakePages(2000, 20);
  RK_ASSERT_OK(other.Commit(*store_, "quick:1"));
  other.ExpectIn(*store_, "quick:1");
  RK_ASSERT_OK((*writer)->AddPages(kObject, kFar, Bytes(other.objects[kObject][kFar])));
  auto info = (*writer)->Commit();
  RK_ASSERT_OK(info);
  EXPECT_GE(info->stats.shared_bytes, 2000 * kPageSize);
  other.ExpectIn(*store_, "slow:1");
  ExpectWhole();
}

TEST_F(EarlyStoringTest, TwoOnTheirWayWithTheSamePages) {
  TestImage image;
  image.objects[kObject][0] = memory_;
  auto one = Coming("one:1"), two = Coming("two:1");
  RK_ASSERT_OK(one);
  RK_ASSERT_OK(two);
  for (size_t at = 0; at < memory_.size(); at += 10 * kPageSize) {
    const auto piece = Bytes(memory_).subspan(at, 10 * kPageSize);
    RK_ASSERT_OK((*one)->AddPages(kObject, at, piece));
    RK_ASSERT_OK((*two)->AddPages(kObject, at, piece));
  }
  RK_ASSERT_OK((*one)->Commit());
  RK_ASSERT_OK((*two)->Commit());
  image.ExpectIn(*store_, "one:1");
  image.ExpectIn(*store_, "two:1");
  ExpectWhole();
}

TEST_F(EarlyStoringTest, WhatDoesNotComeToItsEndLeavesNothing) {
  auto writer = Coming("job:1");
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages(kObject, 0, Bytes(memory_)));
  EXPECT_EQ(Packs(), 1u);  // it is being stored
  EXPECT_TRUE(store_->List()->empty());
  writer->reset();
  EXPECT_EQ(Packs(), 0u);
  auto refused = Coming("job:2");
  RK_ASSERT_OK(refused);
  RK_ASSERT_OK((*refused)->AddPages(kObject, 0, Bytes(memory_)));
  EXPECT_TRUE(absl::IsCancelled(
      (*refused)
          ->Commit([](uint64_t, uint64_t) { return true; }, [] { return absl::CancelledError("no more"); })
          .status()));
  EXPECT_EQ(Packs(), 0u);
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(EarlyStoringTest, FullQuotaIsToldWhilePagesCome) {
  LimitsChange change;
  change.owner = {0, kMiB};
  std::string warning;
  RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  auto writer = Coming("job:1");
  RK_ASSERT_OK(writer);
  const std::string noise = MakePages(8000, 5);
  RK_ASSERT_OK((*writer)->AddPages(kObject, 0, Bytes(noise)));
  const std::string zeros(kPageSize, '\0');
  absl::Status status;
  const absl::Time limit = SteadyNow() + absl::Seconds(60);
  for (uint64_t at = kFar; status.ok() && SteadyNow() < limit; at += kPageSize)
    status = (*writer)->AddPages(kObject, at, Bytes(zeros));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE((*writer)->Commit().ok());
  EXPECT_EQ(Packs(), 0u);
}

}  // namespace
}  // namespace rekindle::store
