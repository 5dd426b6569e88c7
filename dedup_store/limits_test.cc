#include "dedup_store/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "dedup_store/hashing.h"
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

StoreLimits SomeLimits() {
  StoreLimits limits;
  limits.owner_max_bytes = {{0, 5}, {1000, 50 * kMiB}};
  limits.store_max_bytes = 123456789;
  limits.high_water_percent = 80;
  return limits;
}

TEST(StoreLimits, FileSaysWhatWasWritten) {
  for (const StoreLimits& limits : {StoreLimits(), SomeLimits()}) {
    auto read = StoreLimits::Decode(limits.Encode());
    RK_ASSERT_OK(read);
    EXPECT_EQ(read->owner_max_bytes, limits.owner_max_bytes);
    EXPECT_EQ(read->store_max_bytes, limits.store_max_bytes);
    EXPECT_EQ(read->high_water_percent, limits.high_water_percent);
  }
}

TEST(StoreLimits, EveryFlippedBitAndEveryCutIsSeen) {
  const std::string text = SomeLimits().Encode();
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(StoreLimits::Decode(flipped).ok()) << flipped;
  }
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(StoreLimits::Decode(text.substr(0, size)).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST(StoreLimits, ChangesAddUp) {
  StoreLimits limits;
  LimitsChange change;
  change.owner = {1000, 7};
  change.store_max_bytes = 9;
  RK_ASSERT_OK(Apply(change, limits));
  change = {};
  change.owner = {1001, 8};
  change.high_water_percent = 0;
  RK_ASSERT_OK(Apply(change, limits));
  EXPECT_EQ(limits.owner_max_bytes, (std::map<uid_t, uint64_t>{{1000, 7}, {1001, 8}}));
  EXPECT_EQ(limits.store_max_bytes, 9u);
  EXPECT_EQ(limits.high_water_percent, 0u);
  change = {};
  change.owner = {1000, 0};
  RK_ASSERT_OK(Apply(change, limits));
  EXPECT_EQ(limits.owner_max_bytes, (std::map<uid_t, uint64_t>{{1001, 8}}));
  change = {};
  change.high_water_percent = 101;
  change.store_max_bytes = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Apply(change, limits)));
  EXPECT_EQ(limits.store_max_bytes, 9u);
}

TEST(LimitChecks, WhereTheLineIs) {
  using Stage = LimitChecks::Stage;
  StoreLimits limits;
  limits.owner_max_bytes[7] = 100;
  limits.store_max_bytes = 1000;
  limits.high_water_percent = 90;
  const LimitChecks checks(limits, "/s", 7);
  struct Case {
    Stage stage;
    uint64_t used, needed;  // in per cent of the limit
    bool ok;
  } cases[] = {
      {Stage::kBegin, 99, 0, true},
      {Stage::kBegin, 100, 0, false},
      {Stage::kBegin, 200, 0, false},
      {Stage::kWriting, 0, 100, true},
      {Stage::kWriting, 0, 101, false},
      {Stage::kWriting, 50, 51, false},
      {Stage::kWriting, 120, 0, false},
      {Stage::kCommit, 60, 40, true},
      {Stage::kCommit, 60, 41, false},
      {Stage::kCommit, 100, 0, true},
      {Stage::kCommit, 1, ~uint64_t{0}, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(static_cast<int>(c.stage), " ", c.used, " ", c.needed));
    auto code = c.ok ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted;
    EXPECT_EQ(checks.Owner(c.stage, c.used, 1, c.needed).code(), code);
    uint64_t ten = c.needed > 1000 ? c.needed : c.needed * 10;
    EXPECT_EQ(checks.Store(c.stage, c.used * 10, ten).code(), code);
    uint64_t ninety = c.needed > 1000 ? c.needed : c.needed * 90;
    EXPECT_EQ(checks.HighWater(c.stage, {10000, c.used * 90, 1}, ninety).code(), code);
  }
  const LimitChecks other(StoreLimits{{{7, 1}}, 0, 0}, "/s", 8);
  RK_ASSERT_OK(other.Owner(Stage::kCommit, 5, 1, 5));
  RK_ASSERT_OK(other.Store(Stage::kCommit, 5, 5));
  RK_ASSERT_OK(other.HighWater(Stage::kCommit, {10, 10, 0}, 5));
}

class LimitsTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
  }

  absl::StatusOr<ImageInfo> Take(const std::string& reference, uid_t owner, size_t pages, uint64_t seed,
                                 bool replace = false) {
    NewImageOptions options = Named(reference);
    options.owner = owner;
    options.replace = replace;
    auto writer = store_->NewImage(options);
    if (!writer.ok()) return writer.status();
    return Fill(**writer, pages, seed);
  }

  absl::StatusOr<ImageInfo> Fill(ImageWriter& writer, size_t pages, uint64_t seed) {
    contents_.push_back(MakePages(pages, seed));
    const std::string& bytes = contents_.back();
    auto span = absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    if (auto status = writer.AddPages("memory", 0, span); !status.ok()) return status;
    return writer.Commit();
  }

  void Limit(const LimitsChange& change) {
    std::string warning;
    RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
    EXPECT_EQ(warning, "");
  }
  void LimitOwner(uid_t uid, uint64_t bytes) {
    LimitsChange change;
    change.owner = {uid, bytes};
    Limit(change);
  }

  size_t PackFiles() { return ListDirectory(options_.path + "/packs")->size(); }
  std::string LimitsFile() const { return options_.path + "/LIMITS"; }

  std::list<std::string> contents_;
};

TEST_F(LimitsTest, AnOwnerWhoseQuotaIsUsedUpIsRefusedAtOnceAndNobodyElseIs) {
  auto first = Take("a:1", 1000, 64, 1);
  RK_ASSERT_OK(first);
  const uint64_t used = QuotaBytes(first->stats);
  EXPECT_GE(used, 64 * kPageSize);
  LimitOwner(1000, used);
  auto refused = store_->NewImage([] {
    NewImageOptions options = Named("a:2");
    options.owner = 1000;
    return options;
  }());
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("a:2"), HasSubstr("uid 1000"), HasSubstr(options_.path),
                    HasSubstr(FormatBytes(used)), HasSubstr("rekindle rm"), HasSubstr("--max SIZE")));
  RK_ASSERT_OK(Take("b:1", 1001, 64, 2));
  // Room comes back with the image; raising or taking the limit away helps as well.
  RK_ASSERT_OK(store_->Remove("a:1"));
  RK_ASSERT_OK(Take("a:1", 1000, 32, 3));
  LimitOwner(1000, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(Take("a:3", 1000, 1, 4).status()));
  LimitOwner(1000, 0);
  RK_ASSERT_OK(Take("a:3", 1000, 1, 4));
  ExpectWhole();
}

TEST_F(LimitsTest, WhatAnImageBringsCountsToTheByte) {
  auto measured = Take("a:1", 1000, 100, 1);
  RK_ASSERT_OK(measured);
  const uint64_t brought = QuotaBytes(measured->stats);
  RK_ASSERT_OK(store_->Remove("a:1"));
  RK_ASSERT_OK(store_->Gc({}));
  LimitOwner(1000, brought - 1);
  auto refused = Take("a:1", 1000, 100, 1);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(FormatBytes(brought)));
  EXPECT_TRUE(store_->List()->empty());
  EXPECT_EQ(PackFiles(), 0u);
  LimitOwner(1000, brought);
  RK_ASSERT_OK(Take("a:1", 1000, 100, 1));
  // It makes room for what replaces it.
  auto replaced = Take("a:1", 1000, 100, 2, /*replace=*/true);
  RK_ASSERT_OK(replaced);
  EXPECT_LE(QuotaBytes(replaced->stats), brought);
  ExpectWhole();
}

TEST_F(LimitsTest, WhatAPreparedImageSharesWithTheOneItReplacesCountsOnce) {
  auto there = Take("a:1", 1000, 300, 1);
  RK_ASSERT_OK(there);
  // Until it is published both are there, but their pages only once.
  LimitOwner(1000, QuotaBytes(there->stats) + 100 * kPageSize);
  NewImageOptions options = Named("a:1");
  options.owner = 1000;
  options.replace = true;
  options.prepared_id = "g1";
  auto writer = store_->NewImage(options);
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK(Fill(**writer, 300, 1));
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  ExpectWhole();
}

TEST_F(LimitsTest, AnImageFarTooLargeIsRefusedBeforeAllOfItIsWritten) {
  LimitOwner(1000, 5 * kMiB);
  auto refused = Take("a:1", 1000, 16384, 1);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs more than"));
  EXPECT_EQ(PackFiles(), 0u);
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(LimitsTest, TwoThatWereBegunTogetherDoNotBothSlipThrough) {
  for (bool of_store : {false, true}) {
    SCOPED_TRACE(of_store);
    auto stats = store_->Stats();
    RK_ASSERT_OK(stats);
    LimitsChange change;
    change.owner = {1000, of_store ? 0 : 6 * kMiB};
    change.store_max_bytes = of_store ? stats->pack_bytes + stats->metadata_bytes + 6 * kMiB : 0;
    Limit(change);
    std::vector<std::unique_ptr<ImageWriter>> writers;
    for (int i = 0; i < 2; ++i) {
      NewImageOptions options = Named(absl::StrCat(of_store ? "s:" : "o:", i));
      options.owner = 1000;
      auto writer = store_->NewImage(options);
      RK_ASSERT_OK(writer);
      writers.push_back(*std::move(writer));
    }
    // Each would fit. Both commit at the same time, from two threads.
    std::vector<absl::Status> ends(2);
    std::vector<std::string> bytes = {MakePages(1024, of_store * 2 + 10), MakePages(1024, of_store * 2 + 11)};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        auto span =
            absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(bytes[i].data()), bytes[i].size());
        ends[i] = writers[i]->AddPages("memory", 0, span);
        if (ends[i].ok()) ends[i] = writers[i]->Commit().status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    writers.clear();
    EXPECT_NE(ends[0].ok(), ends[1].ok()) << ends[0] << "\n" << ends[1];
    EXPECT_TRUE(absl::IsResourceExhausted(ends[0].ok() ? ends[1] : ends[0]));
    ASSERT_EQ(store_->List()->size(), 1u);
    RK_ASSERT_OK(store_->Remove(store_->List()->front().reference));
  }
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_EQ(PackFiles(), 0u);
}

TEST_F(LimitsTest, TheStoreAsAWhole) {
  RK_ASSERT_OK(Take("a:1", 1000, 256, 1));
  auto stats = store_->Stats();
  RK_ASSERT_OK(stats);
  LimitsChange change;
  change.store_max_bytes = stats->pack_bytes + stats->metadata_bytes + 200 * kPageSize;
  Limit(change);
  auto refused = Take("b:1", 1001, 256, 2);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("b:1"), HasSubstr("uid 1001"), HasSubstr(options_.path),
                    HasSubstr("rekindle gc"), HasSubstr("--store-max")));
  // What is known already needs next to nothing.
  RK_ASSERT_OK(Take("b:1", 1001, 256, 1));
  // Removing alone frees nothing yet, gc does; neither is ever refused.
  RK_ASSERT_OK(store_->Remove("a:1"));
  RK_ASSERT_OK(store_->Remove("b:1"));
  EXPECT_FALSE(Take("c:1", 1001, 256, 3).ok());
  RK_ASSERT_OK(store_->Gc({}));
  RK_ASSERT_OK(Take("c:1", 1001, 256, 3));
  ExpectWhole();
}

TEST_F(LimitsTest, AboveTheHighWaterMarkOnlyNewImagesAreRefused) {
  RK_ASSERT_OK(Take("a:1", 1000, 16, 1));
  const FileSystemUse use = store_->Stats()->file_system;
  ASSERT_GT(use.used_bytes, use.total_bytes / 100);
  LimitsChange change;
  change.high_water_percent = 1;
  Limit(change);
  auto refused = Take("a:2", 1000, 16, 2);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("a:2"), HasSubstr("1 %"), HasSubstr(options_.path), HasSubstr("--high-water")));
  RK_ASSERT_OK(store_->OpenImage("a:1"));
  RK_ASSERT_OK(store_->Remove("a:1"));
  RK_ASSERT_OK(store_->Gc({}));
  change.high_water_percent = 0;
  Limit(change);
  RK_ASSERT_OK(Take("a:2", 1000, 16, 2));
}

TEST_F(LimitsTest, ALimitThatCameWhileAnImageIsWrittenHolds) {
  NewImageOptions options = Named("a:1");
  options.owner = 1000;
  auto writer = store_->NewImage(options);
  RK_ASSERT_OK(writer);
  LimitOwner(1000, 10);
  EXPECT_TRUE(absl::IsResourceExhausted(Fill(**writer, 16, 1).status()));
}

TEST_F(LimitsTest, ADamagedFileMeansNoNewImageAndIsWrittenAnew) {
  RK_ASSERT_OK(Take("a:1", 1000, 16, 1));
  LimitOwner(1000, 100 * kMiB);
  RK_ASSERT_OK(WriteFileAtomically(LimitsFile(), "{}"));
  auto refused = Take("a:2", 1000, 16, 2);
  ASSERT_TRUE(absl::IsDataLoss(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr(LimitsFile()), HasSubstr("rekindle quota")));
  EXPECT_TRUE(absl::IsDataLoss(store_->Limits().status()));
  // The rest of the store goes on.
  RK_ASSERT_OK(store_->OpenImage("a:1"));
  RK_ASSERT_OK(store_->Stats());
  RK_ASSERT_OK(store_->Remove("a:1"));
  RK_ASSERT_OK(store_->Gc({}));

  LimitsChange change;
  change.store_max_bytes = 100 * kMiB;
  std::string warning;
  auto limits = store_->ChangeLimits(change, &warning);
  RK_ASSERT_OK(limits);
  EXPECT_THAT(warning, AllOf(HasSubstr(LimitsFile()), HasSubstr("gone")));
  EXPECT_EQ(limits->owner_max_bytes.size(), 0u);
  RK_ASSERT_OK(Take("a:2", 1000, 16, 2));
}

TEST_F(LimitsTest, AFileOfANewerRekindleIsLeftAlone) {
  StoreLimits limits;
  std::string text = limits.Encode();
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, sizeof("\"version\": 1") - 1, "\"version\": 2");
  // As one of a newer version would be: with a checksum that fits.
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
  json.erase("checksum");
  json["checksum"] = absl::StrCat(absl::Hex(Checksum(json.dump()).lo, absl::kZeroPad16));
  RK_ASSERT_OK(WriteFileAtomically(LimitsFile(), json.dump(2) + "\n"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Take("a:1", 0, 1, 1).status()));
  std::string warning;
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->ChangeLimits({}, &warning).status()));
  EXPECT_EQ(*ReadFile(LimitsFile()), json.dump(2) + "\n");
}

TEST_F(LimitsTest, ManyChangesAtOnceAllCount) {
  std::vector<std::thread> threads;
  for (uid_t uid = 1; uid <= 8; ++uid) threads.emplace_back([this, uid] { LimitOwner(uid, uid * kMiB); });
  for (std::thread& thread : threads) thread.join();
  auto limits = store_->Limits();
  RK_ASSERT_OK(limits);
  EXPECT_EQ(limits->owner_max_bytes.size(), 8u);
  // What one that was killed left behind goes with the next change.
  RK_ASSERT_OK(WriteFileAtomically(LimitsFile() + ".tmp-1-2", "half"));
  LimitOwner(1, 0);
  const std::vector<std::string> names = *ListDirectory(options_.path);
  for (const std::string& name : names) {
    EXPECT_THAT(name, testing::Not(HasSubstr(".tmp")));
  }
}

}  // namespace
}  // namespace rekindle::store
