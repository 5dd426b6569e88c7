#include "restore/cache_warmer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dedup_store/store_testing.h"

namespace rekindle::restore {
namespace {

using store::FrameId;
using store::kPageSize;
using store::StatusOf;

constexpr uint64_t kBudget = 16 * SlabPool::kSlabBytes;

class CacheWarmerTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    StartAnew();
  }

  // Another process's cache and what warms it.
  void StartAnew() {
    warmer_.reset();
    auto cache = FrameCache::Make({kBudget});
    RK_ASSERT_OK(cache);
    cache_ = *std::move(cache);
    warmer_ = std::make_unique<CacheWarmer>(store_->path(), *cache_);
  }

  std::string AddImage(const std::string& name, size_t pages, int seed) {
    store::TestImage image;
    image.objects["m"][0] = store::MakePages(pages, seed);
    EXPECT_TRUE(image.Commit(*store_, name).ok());
    auto info = store_->Find(name);
    EXPECT_TRUE(info.ok()) << info.status();
    return info->digest;
  }

  std::vector<FrameId> FramesOf(const std::string& image) {
    auto reader = store_->OpenImage(image);
    EXPECT_TRUE(reader.ok()) << reader.status();
    auto layout = (*reader)->Layout("m");
    EXPECT_TRUE(layout.ok()) << layout.status();
    std::vector<FrameId> frames;
    for (const store::StoredRun& run : *layout) frames.push_back(run.frame);
    return frames;
  }

  // As several clones of it would.
  void Use(const std::string& image, int times = 3) {
    auto reader = store_->OpenImage(image);
    RK_ASSERT_OK(reader);
    for (int i = 0; i < times; ++i) {
      for (FrameId frame : FramesOf(image)) RK_ASSERT_OK(cache_->GetOrLoad(**reader, frame));
    }
  }

  void Warm() {
    warmer_->Warm(
        [this](const std::string& digest) -> absl::StatusOr<std::shared_ptr<const store::ImageReader>> {
          auto reader = store_->OpenImage(digest);
          if (!reader.ok()) return reader.status();
          return std::shared_ptr<const store::ImageReader>(*std::move(reader));
        },
        [] { return true; });
    EXPECT_FALSE(warmer_->warming());
  }

  size_t There(const std::vector<FrameId>& frames) {
    return static_cast<size_t>(
        std::count_if(frames.begin(), frames.end(), [this](FrameId id) { return bool(cache_->Get(id)); }));
  }

  std::unique_ptr<FrameCache> cache_;
  std::unique_ptr<CacheWarmer> warmer_;
};

TEST_F(CacheWarmerTest, WhatWasUsedOftenComesBack) {
  const std::string a = AddImage("a", 200, 1), b = AddImage("b", 200, 2);
  const std::vector<FrameId> of_a = FramesOf(a), of_b = FramesOf(b);
  Warm();
  EXPECT_EQ(cache_->Stats().frames, 0u);
  Use(a);
  Use(b, 1);  // once is not often
  warmer_->Save({b, a});
  StartAnew();
  EXPECT_TRUE(HasHotList(store_->path()));
  Warm();
  EXPECT_EQ(There(of_a), of_a.size());
  EXPECT_EQ(There(of_b), 0u);
  EXPECT_EQ(cache_->Stats().warmed, of_a.size());
  EXPECT_EQ(cache_->Stats().misses, 0u);
}

TEST_F(CacheWarmerTest, WhoHasUsedNothingLeavesTheListAsItIs) {
  const std::string a = AddImage("a", 100, 1);
  Warm();
  Use(a);
  warmer_->Save({a});
  const std::string before = *ReadFile(store_->path() + "/hot-frames");
  StartAnew();
  warmer_->Save({});
  Warm();
  warmer_->Save({});
  EXPECT_TRUE(*ReadFile(store_->path() + "/hot-frames") == before);
}

TEST_F(CacheWarmerTest, RemovedImagesAreLeftOut) {
  const std::string a = AddImage("a", 100, 1), b = AddImage("b", 100, 2);
  const std::vector<FrameId> of_b = FramesOf(b);
  Warm();
  Use(a);
  Use(b);
  warmer_->Save({a, b});
  RK_ASSERT_OK(store_->Remove("a"));
  RK_ASSERT_OK(store_->Gc({}));
  StartAnew();
  Warm();
  EXPECT_EQ(There(of_b), of_b.size());
  EXPECT_EQ(cache_->Stats().frames, of_b.size());
}

TEST_F(CacheWarmerTest, TakesAShareOfTheCache) {
  const std::string a = AddImage("a", 7000, 1);  // nearly all of it
  Warm();
  Use(a);
  warmer_->Save({a});
  StartAnew();
  Warm();
  EXPECT_GT(cache_->Stats().memory_bytes, kBudget / 4);
  EXPECT_LE(cache_->Stats().bytes, kBudget / 2);
}

TEST_F(CacheWarmerTest, WhatIsDamagedIsNotUsedAndWrittenAnew) {
  const std::string a = AddImage("a", 100, 1);
  Warm();
  Use(a);
  warmer_->Save({a});
  const std::string path = store_->path() + "/hot-frames", good = *ReadFile(path);
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_TRUE(absl::IsDataLoss(HotList::Decode(bad).status())) << i;
    EXPECT_TRUE(absl::IsDataLoss(HotList::Decode(good.substr(0, i)).status())) << i;
  }
  RK_ASSERT_OK(WriteFileAtomically(path, good.substr(0, good.size() / 2)));
  RK_ASSERT_OK(WriteFileAtomically(path + ".123abc", "of a writer that was killed"));
  StartAnew();
  Warm();
  EXPECT_EQ(cache_->Stats().frames, 0u);
  EXPECT_FALSE(PathExists(path + ".123abc"));
  Use(a);
  warmer_->Save({a});
  EXPECT_TRUE(HotList::Decode(*ReadFile(path)).ok());
}

TEST_F(CacheWarmerTest, WhatThereWasNoTimeForStaysInTheList) {
  const std::string a = AddImage("a", 500, 1), b = AddImage("b", 100, 2);
  Warm();
  Use(a);
  warmer_->Save({a});
  StartAnew();
  auto open = [this,
               &b](const std::string& digest) -> absl::StatusOr<std::shared_ptr<const store::ImageReader>> {
    // In the middle of it.
    Use(b);
    warmer_->Save({b});
    auto reader = store_->OpenImage(digest);
    if (!reader.ok()) return reader.status();
    return std::shared_ptr<const store::ImageReader>(*std::move(reader));
  };
  warmer_->Warm(open, [] { return true; });
  auto list = ReadHotList(store_->path());
  RK_ASSERT_OK(list);
  EXPECT_EQ(list->images, (std::vector<std::string>{b, a}));
  EXPECT_EQ(list->frames.size(), FramesOf(a).size() + FramesOf(b).size());
}

}  // namespace
}  // namespace rekindle::restore
