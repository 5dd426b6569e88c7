// An image's blobs are read together, and what is wrong with one of them costs no other.
#include "dedup_store/blob_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/hooked_store_testing.h"
#include "dedup_store/store.h"

namespace rekindle::store {
namespace {

class BlobsTest : public HookedStoreTest {
 protected:
  void SetUp() override {
    hook_ = [this](const HookedDisk::Operation& operation) {
      if (operation.call == HookedDisk::Call::kRead && absl::EndsWith(operation.path, ".pack")) ++reads_;
      return absl::OkStatus();
    };
    HookedStoreTest::SetUp();
  }

  // `count` blobs of an image job:1, which is then opened.
  void CommitAndOpen(size_t count, size_t bytes, Content content) {
    for (size_t i = 0; i < count; ++i) {
      const std::string pages = MakePages(bytes / kPageSize + 1, i, content);
      image_.blobs[absl::StrCat("blob-", i)] = pages.substr(0, bytes);
    }
    image_.blobs["empty"] = "";
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    Open();
  }
  void Open() {
    auto image = store_->OpenImage("job:1");
    RK_ASSERT_OK(image);
    reader_ = *std::move(image);
  }
  void ExpectAll() const {
    for (const auto& [name, bytes] : image_.blobs) {
      auto read = reader_->ReadBlob(name);
      RK_ASSERT_OK(read);
      EXPECT_TRUE(*read == bytes) << name;
    }
  }

  std::atomic<int> reads_{0};
  TestImage image_;
  std::unique_ptr<ImageReader> reader_;
};

TEST_F(BlobsTest, ManySmallOnesAreReadAtOnceAndOnce) {
  CommitAndOpen(500, 3000, Content::kText);
  reads_ = 0;
  for (int i = 0; i < 3; ++i) ExpectAll();
  EXPECT_LT(reads_, 20);
}

TEST_F(BlobsTest, WhoWantsOneReadsNoOthers) {
  CommitAndOpen(20, 200 << 10, Content::kRandom);
  reads_ = 0;
  RK_ASSERT_OK(reader_->ReadBlob("blob-3"));
  EXPECT_LE(reads_, 2);
}

TEST_F(BlobsTest, ThoseThatLieInTwoPiecesAreWhole) {
  CommitAndOpen(30, 700 << 10, Content::kRandom);
  for (int i = 0; i < 3; ++i) ExpectAll();
  EXPECT_TRUE(absl::IsNotFound(reader_->ReadBlob("blob-30").status()));
}

TEST_F(BlobsTest, SeveralThreadsReadThem) {
  CommitAndOpen(300, 3000, Content::kText);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { ExpectAll(); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(BlobsTest, ADamagedFrameCostsOnlyItsOwn) {
  CommitAndOpen(100, 20000, Content::kRandom);
  reader_.reset();
  const std::string packs = options_.path + "/packs";
  const std::vector<std::string> names = ListDirectory(packs).value();
  for (const std::string& name : names) {
    std::string bytes = ReadFile(packs + "/" + name).value();
    bytes[bytes.size() / 2] ^= 1;
    RK_ASSERT_OK(WriteFileAtomically(packs + "/" + name, bytes, 0600));
  }
  Reopen();
  Open();
  for (int round = 0; round < 2; ++round) {
    int damaged = 0;
    for (const auto& [name, bytes] : image_.blobs) {
      auto read = reader_->ReadBlob(name);
      if (absl::IsDataLoss(read.status())) {
        ++damaged;
        continue;
      }
      RK_ASSERT_OK(read);
      EXPECT_TRUE(*read == bytes) << name;
    }
    EXPECT_GT(damaged, 0);
    EXPECT_LT(damaged, 30);
  }
}

TEST(BlobCacheTest, KeepsNoMoreThanItMayAndForgetsTheOldest) {
  BlobCache cache;
  const uint64_t first = cache.NewReader(), second = cache.NewReader();
  const auto bytes = std::make_shared<const std::string>(BlobCache::kPieceBytes, 'x');
  constexpr uint64_t kMost = BlobCache::kMostBytes / BlobCache::kPieceBytes;
  for (uint64_t piece = 0; piece < kMost; ++piece) cache.Put(first, piece, bytes);
  EXPECT_NE(cache.Find(first, 0), nullptr);
  cache.Put(second, 0, bytes);
  EXPECT_EQ(cache.Find(first, 1), nullptr);
  EXPECT_NE(cache.Find(first, 0), nullptr);
  EXPECT_EQ(bytes.use_count(), static_cast<long>(kMost) + 1);
  cache.ForgetReader(first);
  EXPECT_EQ(cache.Find(first, 0), nullptr);
  EXPECT_NE(cache.Find(second, 0), nullptr);
  EXPECT_EQ(bytes.use_count(), 2);
}

}  // namespace
}  // namespace rekindle::store
