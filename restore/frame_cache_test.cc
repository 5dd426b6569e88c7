#include "restore/frame_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dedup_store/store_testing.h"

namespace rekindle::restore {
namespace {

using store::FrameId;
using store::kPageSize;
using store::StatusOf;

constexpr uint64_t kSlab = SlabPool::kSlabBytes;

uint32_t PagesOf(FrameId frame) { return 1 + (frame.frame * 13 + frame.pack) % 64; }

// A frame's pages follow from its name.
void FillByName(FrameId frame, absl::Span<std::byte> out) {
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t word = frame.pack * 1000003 + frame.frame * 4096 + i;
    memcpy(out.data() + i, &word, 8);
  }
}

bool IsRight(FrameId frame, absl::Span<const std::byte> bytes) {
  std::vector<std::byte> expected(PagesOf(frame) * kPageSize);
  FillByName(frame, absl::MakeSpan(expected));
  return bytes.size() == expected.size() && memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

std::vector<FrameId> Frames(uint32_t count, uint64_t pack = 1) {
  std::vector<FrameId> frames;
  for (uint32_t i = 0; i < count; ++i) frames.push_back({pack, i});
  return frames;
}

class FrameCacheTest : public testing::Test {
 protected:
  void MakeCache(uint64_t budget, bool shared = false) {
    auto cache = FrameCache::Make({budget, shared});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  absl::StatusOr<FrameCache::Pin> Load(FrameId frame) {
    return cache_->GetOrLoad(frame, PagesOf(frame), [this](FrameId id, absl::Span<std::byte> out) {
      ++loads_;
      FillByName(id, out);
      return absl::OkStatus();
    });
  }
  void ExpectLoads(FrameId frame) {
    auto pin = Load(frame);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(IsRight(frame, pin->bytes()));
  }

  // Loads in the order of the numbers, whatever the order that was asked for.
  FrameCache::BulkLoader Bulk() {
    return [this](absl::Span<const FrameId> frames, const store::ImageReader::FrameTarget& where,
                  const store::ImageReader::FrameLoaded& loaded) -> absl::Status {
      std::vector<size_t> order(frames.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return frames[a] < frames[b]; });
      for (size_t i : order) {
        absl::Span<std::byte> out = where(i);
        if (out.empty()) continue;
        ++loads_;
        FillByName(frames[i], out);
        if (absl::Status status = loaded(i); !status.ok()) return status;
      }
      return absl::OkStatus();
    };
  }

  std::unique_ptr<FrameCache> cache_;
  std::atomic<uint64_t> loads_{0};
};

TEST_F(FrameCacheTest, LoadsOnceAndCounts) {
  MakeCache(8 * kSlab);
  const FrameId frame{3, 4};
  const uint64_t bytes = PagesOf(frame) * kPageSize;
  EXPECT_FALSE(cache_->Get(frame));
  ExpectLoads(frame);
  {
    FrameCache::Pin pin = cache_->Get(frame);
    ASSERT_TRUE(pin);
    EXPECT_TRUE(pin.cached());
    EXPECT_TRUE(IsRight(frame, pin.bytes()));
    FrameCache::Pin second = cache_->Get(frame);
    FrameCache::Pin moved = std::move(pin);
    EXPECT_FALSE(pin);  // NOLINT(bugprone-use-after-move): that it is empty is what is said
    EXPECT_TRUE(pin.bytes().empty());
    EXPECT_EQ(cache_->Stats().pinned_frames, 1u);
    EXPECT_EQ(cache_->Stats().pinned_bytes, bytes);
  }
  const FrameCacheStats stats = cache_->Stats();
  EXPECT_EQ(loads_, 1u);
  EXPECT_EQ(stats.hits, 2u);
  EXPECT_EQ(stats.hit_bytes, 2 * bytes);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.miss_bytes, bytes);
  EXPECT_EQ(stats.frames, 1u);
  EXPECT_EQ(stats.bytes, bytes);
  EXPECT_EQ(stats.pinned_bytes, 0u);
  EXPECT_EQ(stats.memory_bytes, kSlab);
  EXPECT_EQ(stats.budget_bytes, 8 * kSlab);
}

TEST_F(FrameCacheTest, WhatIsDiscardedLeavesItsMemory) {
  MakeCache(64 * kSlab);
  const std::vector<FrameId> going = Frames(200, 1), staying = Frames(100, 2);
  std::vector<FrameCache::Pin> pins;  // spread over all slabs
  for (size_t i = 0; i < going.size(); ++i) {
    ExpectLoads(going[i]);
    if (i % 50 == 0) pins.push_back(cache_->Get(going[i]));
    if (i % 2 == 0) ExpectLoads(staying[i / 2]);
  }
  const uint64_t before = cache_->Stats().memory_bytes;
  std::vector<FrameId> gone = going;
  gone.push_back({3, 0});  // was never there
  cache_->Discard(gone);
  EXPECT_EQ(cache_->Stats().frames, staying.size() + pins.size());
  EXPECT_LT(cache_->Stats().memory_bytes, before);
  EXPECT_EQ(cache_->Stats().evictions, 0u);
  for (size_t i = 0; i < pins.size(); ++i) EXPECT_TRUE(IsRight(going[i * 50], pins[i].bytes()));
  loads_ = 0;
  for (const FrameId& frame : staying) ExpectLoads(frame);
  EXPECT_EQ(loads_, 0u);
  pins.clear();
  cache_->Discard(cache_->Frames());
  EXPECT_EQ(cache_->Stats().memory_bytes, 0u);
  EXPECT_EQ(cache_->Stats().bytes, 0u);
  ExpectLoads(going[1]);
  EXPECT_EQ(loads_, 1u);
}

TEST_F(FrameCacheTest, KeepsToItsBudget) {
  MakeCache(8 * kSlab);
  for (const FrameId& frame : Frames(2000)) {
    ExpectLoads(frame);
    const FrameCacheStats stats = cache_->Stats();
    ASSERT_LE(stats.bytes, stats.memory_bytes);
    ASSERT_LE(stats.memory_bytes, 8 * kSlab);
    ASSERT_EQ(stats.refusals, 0u) << frame.frame;
  }
  const FrameCacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.misses, 2000u);
  EXPECT_EQ(stats.evictions, 2000 - stats.frames);
  // What it says that it holds it holds.
  uint64_t held = 0, bytes = 0;
  for (const FrameId& frame : Frames(2000)) {
    FrameCache::Pin pin = cache_->Get(frame);
    if (!pin) continue;
    ++held;
    bytes += pin.bytes().size();
    EXPECT_TRUE(IsRight(frame, pin.bytes()));
  }
  EXPECT_EQ(held, stats.frames);
  EXPECT_EQ(bytes, stats.bytes);
}

TEST_F(FrameCacheTest, ACacheOfOneSizeMakesRoomForAnother) {
  MakeCache(16 * kSlab);
  auto load = [&](FrameId frame, uint32_t pages) {
    auto pin = cache_->GetOrLoad(frame, pages, [](FrameId id, absl::Span<std::byte> out) {
      FillByName(id, out);
      return absl::OkStatus();
    });
    ASSERT_TRUE(pin.ok());
    EXPECT_TRUE(pin->cached()) << pages << " pages, frame " << frame.frame;
  };
  for (uint32_t pages : {64, 32, 64, 5, 1, 17, 33, 64}) {
    for (uint32_t i = 0; i < 16 * kSlab / (pages * kPageSize); ++i) load({pages, i}, pages);
  }
  EXPECT_EQ(cache_->Stats().refusals, 0u);
}

TEST_F(FrameCacheTest, WhatIsPinnedStaysAndTheRestGetsMemoryOfItsOwn) {
  MakeCache(kSlab);
  std::vector<FrameCache::Pin> pins;
  uint64_t private_bytes = 0;
  for (const FrameId& frame : Frames(100)) {
    auto pin = Load(frame);
    ASSERT_TRUE(pin.ok());
    if (!pin->cached()) private_bytes += pin->bytes().size();
    pins.push_back(*std::move(pin));
  }
  EXPECT_GT(private_bytes, 0u);
  EXPECT_EQ(cache_->Stats().private_bytes, private_bytes);
  EXPECT_EQ(cache_->Stats().pinned_frames, 100u);
  for (uint32_t i = 0; i < pins.size(); ++i) {
    EXPECT_TRUE(IsRight({1, i}, pins[i].bytes())) << i;
    // Who comes while it is in use shares it.
    FrameCache::Pin again = cache_->Get({1, i});
    ASSERT_TRUE(again) << i;
    EXPECT_EQ(again.bytes().data(), pins[i].bytes().data());
  }
  EXPECT_EQ(loads_, 100u);
  const uint64_t refusals = cache_->Stats().refusals;
  pins.clear();
  EXPECT_EQ(cache_->Stats().private_bytes, 0u);
  EXPECT_EQ(cache_->Stats().pinned_bytes, 0u);
  EXPECT_EQ(cache_->Stats().frames, 100 - refusals);
}

TEST_F(FrameCacheTest, WithoutABudgetEveryFrameIsItsUsersOwn) {
  MakeCache(0);
  ExpectLoads({1, 1});
  ExpectLoads({1, 1});
  EXPECT_EQ(loads_, 2u);
  EXPECT_EQ(cache_->Stats().private_bytes, 0u);
}

TEST_F(FrameCacheTest, AFailureIsToldAndNotKept) {
  for (uint64_t budget : {uint64_t{0}, 4 * kSlab}) {
    MakeCache(budget);
    auto failed = cache_->GetOrLoad(
        {1, 1}, 5, [](FrameId, absl::Span<std::byte>) { return absl::DataLossError("it is damaged"); });
    EXPECT_EQ(failed.status(), absl::DataLossError("it is damaged"));
    EXPECT_FALSE(cache_->Get({1, 1}));
    EXPECT_EQ(cache_->Stats().frames, 0u);
    EXPECT_EQ(cache_->Stats().bytes, 0u);
    EXPECT_EQ(cache_->Stats().private_bytes, 0u);
    EXPECT_EQ(cache_->Stats().pinned_bytes, 0u);
    ExpectLoads({1, 1});
    EXPECT_TRUE(absl::IsInvalidArgument(Load({1, 1}).ok() ? cache_->GetOrLoad({9, 9}, 0, {}).status()
                                                          : absl::OkStatus()));
  }
}

TEST_F(FrameCacheTest, OneLoadsAndTheOthersWait) {
  for (bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    MakeCache(4 * kSlab);
    std::latch begun(1), go_on(1);
    std::atomic<int> loads{0}, right{0}, told{0};
    auto work = [&] {
      auto pin = cache_->GetOrLoad({1, 1}, PagesOf({1, 1}), [&](FrameId id, absl::Span<std::byte> out) {
        ++loads;
        begun.count_down();
        go_on.wait();
        FillByName(id, out);
        return fails ? absl::DataLossError("it is damaged") : absl::OkStatus();
      });
      if (pin.ok()) right += IsRight({1, 1}, pin->bytes());
      told += absl::IsDataLoss(pin.status());
    };
    std::vector<std::thread> threads;
    threads.emplace_back(work);
    begun.wait();
    // Not to be had yet.
    EXPECT_FALSE(cache_->Get({1, 1}));
    for (int i = 0; i < 3; ++i) threads.emplace_back(work);
    // Each that waits has it pinned and counts as a hit.
    while (cache_->Stats().hits < 3) std::this_thread::yield();
    go_on.count_down();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(loads, 1);
    EXPECT_EQ(right, fails ? 0 : 4);
    EXPECT_EQ(told, fails ? 4 : 0);
    EXPECT_EQ(cache_->Stats().pinned_bytes, 0u);
  }
}

TEST_F(FrameCacheTest, AllAreGivenOnceWhetherThereOrNot) {
  for (uint64_t budget : {uint64_t{0}, 2 * kSlab, 64 * kSlab}) {
    SCOPED_TRACE(budget);
    MakeCache(budget);
    std::vector<FrameId> frames = Frames(150);
    for (uint32_t i = 0; i < 150; i += 3) ExpectLoads({1, i});
    loads_ = 0;
    std::shuffle(frames.begin(), frames.end(), std::mt19937(3));
    frames.push_back(frames.front());  // twice
    std::map<size_t, int> given;
    auto status = cache_->GetAll(frames, PagesOf, Bulk(), [&](size_t i, FrameCache::Pin pin) {
      ++given[i];
      EXPECT_TRUE(IsRight(frames[i], pin.bytes()));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(given.size(), frames.size());
    for (const auto& [i, times] : given) EXPECT_EQ(times, 1) << i;
    if (budget == 64 * kSlab) {
      EXPECT_EQ(loads_, 100u);
    }
    EXPECT_EQ(cache_->Stats().pinned_bytes, 0u);
    EXPECT_EQ(cache_->Stats().private_bytes, 0u);
  }
}

TEST_F(FrameCacheTest, WhoGivesUpHarmsNobodyWhoWaits) {
  MakeCache(8 * kSlab);
  std::thread other;
  absl::Status status = cache_->GetAll(
      Frames(2), PagesOf,
      [&](absl::Span<const FrameId> frames, const store::ImageReader::FrameTarget& where,
          const store::ImageReader::FrameLoaded&) {
        EXPECT_EQ(where(0).size(), PagesOf(frames[0]) * kPageSize);
        other = std::thread([&] { ExpectLoads({1, 0}); });
        while (cache_->Stats().hits < 1) std::this_thread::yield();
        return absl::AbortedError("the job has ended");
      },
      [](size_t, FrameCache::Pin) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsAborted(status));
  other.join();
  EXPECT_EQ(loads_, 1u);
  EXPECT_TRUE(cache_->Get({1, 0}));
}

TEST_F(FrameCacheTest, AnErrorOfTheUserEndsIt) {
  MakeCache(8 * kSlab);
  int given = 0;
  absl::Status status = cache_->GetAll(Frames(20), PagesOf, Bulk(), [&](size_t, FrameCache::Pin) {
    return ++given == 5 ? absl::AbortedError("the job has ended") : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(given, 5);
  EXPECT_EQ(loads_, 5u);
  EXPECT_EQ(cache_->Stats().frames, 5u);
}

TEST_F(FrameCacheTest, WhatWasUsedOftenIsWarmAfterARestart) {
  MakeCache(64 * kSlab);
  for (const FrameId& frame : Frames(60)) ExpectLoads(frame);
  for (const FrameId& frame : Frames(30)) ExpectLoads(frame);
  for (const FrameId& frame : Frames(10)) ExpectLoads(frame);
  const std::vector<FrameId> hot = cache_->HotList(1000);
  EXPECT_EQ(std::set<FrameId>(hot.begin(), hot.begin() + 10), [] {
    const std::vector<FrameId> frames = Frames(10);
    return std::set<FrameId>(frames.begin(), frames.end());
  }());
  EXPECT_EQ(hot.size(), 30u);
  EXPECT_EQ(cache_->HotList(7).size(), 7u);

  auto list = DecodeFrameList(EncodeFrameList(hot));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(*list, hot);
  MakeCache(64 * kSlab);
  loads_ = 0;
  // Of another image's frames nothing is known here.
  list->insert(list->begin(), {77, 5});
  auto pages_of = [](FrameId frame) { return frame.pack == 1 ? PagesOf(frame) : 0; };
  const auto always = [] { return true; };
  const FrameId gone = hot[3];  // of an image that is there, but can't be read
  const FrameCache::Loader loader = [&](FrameId frame, absl::Span<std::byte> out) {
    if (frame == gone) return absl::DataLossError("gone");
    ++loads_;
    FillByName(frame, out);
    return absl::OkStatus();
  };
  EXPECT_EQ(cache_->Warm(*list, pages_of, loader, UINT64_MAX, always), 29u);
  EXPECT_EQ(loads_, 29u);
  EXPECT_EQ(cache_->Stats().warmed, 29u);
  EXPECT_EQ(cache_->Stats().misses, 0u);
  for (const FrameId& frame : hot) {
    if (frame == gone) continue;
    FrameCache::Pin pin = cache_->Get(frame);
    ASSERT_TRUE(pin);
    EXPECT_TRUE(IsRight(frame, pin.bytes()));
  }
  EXPECT_EQ(cache_->Stats().pinned_bytes, 0u);
  // What is there is not loaded again.
  EXPECT_EQ(cache_->Warm(*list, pages_of, loader, UINT64_MAX, always), 0u);

  // No more than there is room for, and nothing goes for it.
  MakeCache(2 * kSlab);
  cache_->Warm(*list, pages_of, loader, UINT64_MAX, always);
  EXPECT_EQ(cache_->Stats().evictions, 0u);
  EXPECT_EQ(cache_->Stats().refusals, 0u);
  EXPECT_GT(cache_->Stats().frames, 0u);
  EXPECT_LT(cache_->Stats().frames, 30u);

  // No more than it was allowed, and only as long as it was.
  MakeCache(64 * kSlab);
  cache_->Warm(*list, pages_of, loader, 100 * kPageSize, always);
  EXPECT_GT(cache_->Stats().bytes, 0u);
  EXPECT_LE(cache_->Stats().bytes, 100 * kPageSize);
  MakeCache(64 * kSlab);
  int left = 5;
  EXPECT_EQ(cache_->Warm(*list, pages_of, loader, UINT64_MAX, [&] { return left-- > 0; }), 4u);
}

TEST_F(FrameCacheTest, ItsBudgetCanChange) {
  auto cache = FrameCache::Make({4 * kSlab, false, 64 * kSlab});
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache_ = *std::move(cache);
  EXPECT_EQ(cache_->Stats().budget_bytes, 4 * kSlab);
  for (const FrameId& frame : Frames(400)) ExpectLoads(frame);
  EXPECT_LE(cache_->Stats().memory_bytes, 4 * kSlab);

  ASSERT_TRUE(cache_->SetBudget(48 * kSlab).ok());
  EXPECT_EQ(cache_->Stats().budget_bytes, 48 * kSlab);
  for (const FrameId& frame : Frames(400)) ExpectLoads(frame);
  EXPECT_GT(cache_->Stats().memory_bytes, 16 * kSlab);
  EXPECT_EQ(cache_->Stats().frames, 400u);

  // A smaller one holds at once, but for what is in use.
  auto pin = Load({1, 7});
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(cache_->SetBudget(3 * kSlab + 1).ok());
  EXPECT_EQ(cache_->Stats().budget_bytes, 3 * kSlab);
  EXPECT_LE(cache_->Stats().memory_bytes, 3 * kSlab);
  EXPECT_TRUE(IsRight({1, 7}, pin->bytes()));
  for (const FrameId& frame : Frames(400)) ExpectLoads(frame);
  EXPECT_LE(cache_->Stats().memory_bytes, 3 * kSlab);
  ASSERT_TRUE(cache_->SetBudget(0).ok());
  EXPECT_LE(cache_->Stats().frames, 1u);
  EXPECT_TRUE(IsRight({1, 7}, pin->bytes()));
  pin->Release();
  ExpectLoads({1, 8});
  // No more than was reserved.
  ASSERT_TRUE(cache_->SetBudget(UINT64_MAX).ok());
  EXPECT_EQ(cache_->Stats().budget_bytes, 64 * kSlab);
  for (const FrameId& frame : Frames(100)) ExpectLoads(frame);
  EXPECT_LE(cache_->HugeBytes(), cache_->Stats().budget_bytes);
}

TEST(FrameList, DamageIsNoticed) {
  const std::vector<FrameId> frames = {{5, 9}, {1, 0}, {5, 1000000}, {~uint64_t{0}, ~uint32_t{0}}};
  const std::string bytes = EncodeFrameList(frames);
  EXPECT_EQ(*DecodeFrameList(bytes), frames);
  EXPECT_EQ(DecodeFrameList(EncodeFrameList({}))->size(), 0u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeFrameList(bytes.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeFrameList(bytes + '\0').status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeFrameList(std::string(10, '\xff')).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeFrameList(std::string("\0\xff\xff\xff\xff\x0f", 6)).status()));
}

// Everybody does everything in a cache that is too small, and some loads fail.
TEST_F(FrameCacheTest, ManyThreadsSeeTheRightPages) {
  MakeCache(3 * kSlab);
  std::atomic<uint64_t> wrong{0}, failures{0}, given{0};
  auto fails_now = [](uint64_t random) { return random % 37 == 0; };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<std::pair<FrameId, FrameCache::Pin>> kept;
      for (int round = 0; round < 300; ++round) {
        const FrameId frame{1, static_cast<uint32_t>(std::min(random() % 120, random() % 120))};
        if (round % 30 == 29) {
          std::vector<FrameId> frames;
          for (uint32_t i = 0; i < 20; ++i)
            frames.push_back({1, static_cast<uint32_t>((frame.frame + i * 3) % 120)});
          uint64_t here = 0;
          auto status = cache_->GetAll(frames, PagesOf, Bulk(), [&](size_t i, FrameCache::Pin pin) {
            wrong += !IsRight(frames[i], pin.bytes());
            ++here;
            return absl::OkStatus();
          });
          failures += !status.ok();
          if (status.ok()) given += here;
          continue;
        }
        const bool fails = fails_now(random());
        auto pin = cache_->GetOrLoad(frame, PagesOf(frame), [&](FrameId id, absl::Span<std::byte> out) {
          FillByName(id, out);
          if (!fails) return absl::OkStatus();
          memset(out.data(), 0xee, out.size());
          return absl::DataLossError("it is damaged");
        });
        if (!pin.ok()) continue;
        wrong += !IsRight(frame, pin->bytes());
        if (random() % 4 == 0) kept.emplace_back(frame, *std::move(pin));
        if (kept.size() > 6) {
          wrong += !IsRight(kept.front().first, kept.front().second.bytes());
          kept.erase(kept.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(given + 20 * failures, 4u * 10 * 20);
  const FrameCacheStats stats = cache_->Stats();
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_EQ(stats.pinned_bytes, 0u);
  EXPECT_EQ(stats.pinned_frames, 0u);
  EXPECT_EQ(stats.private_bytes, 0u);
  EXPECT_LE(stats.memory_bytes, 3 * kSlab);
  for (const FrameId& frame : Frames(120)) {
    if (FrameCache::Pin pin = cache_->Get(frame)) {
      EXPECT_TRUE(IsRight(frame, pin.bytes()));
    }
  }
}

class FrameCacheOfImageTest : public store::StoreTest {};

TEST_F(FrameCacheOfImageTest, HoldsTheImagesOwnFrames) {
  Reopen();
  store::TestImage image;
  image.objects["m"][0] =
      store::MakePages(100, 1) + store::MakePages(100, 2, store::Content::kText) + store::MakePages(30, 3);
  RK_ASSERT_OK(image.Commit(*store_, "image"));
  auto reader = store_->OpenImage("image");
  RK_ASSERT_OK(reader);
  auto layout = (*reader)->Layout("m");
  RK_ASSERT_OK(layout);
  std::vector<FrameId> frames;
  for (const store::StoredRun& run : *layout) frames.push_back(run.frame);
  auto cache = FrameCache::Make({16 * kSlab, true});
  RK_ASSERT_OK(cache);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> got(frames.size());
    RK_ASSERT_OK((*cache)->GetAll(**reader, frames, [&](size_t i, FrameCache::Pin pin) {
      const store::StoredRun& run = (*layout)[i];
      got[i] = std::string(reinterpret_cast<const char*>(pin.bytes().data()), pin.bytes().size())
                   .substr(run.page_in_frame * kPageSize, run.pages * kPageSize);
      return absl::OkStatus();
    }));
    std::string all;
    for (const std::string& part : got) all += part;
    EXPECT_TRUE(all == image.objects["m"][0]);
  }
  EXPECT_EQ((*cache)->Stats().misses, frames.size());
  auto pin = (*cache)->GetOrLoad(**reader, frames[1]);
  RK_ASSERT_OK(pin);
  EXPECT_EQ(pin->bytes().size(), (*reader)->FramePages(frames[1]) * kPageSize);
  EXPECT_TRUE(absl::IsInvalidArgument((*cache)->GetOrLoad(**reader, {1, 1}).status()));

  auto another = FrameCache::Make({16 * kSlab, false});
  RK_ASSERT_OK(another);
  EXPECT_EQ((*another)->Warm(**reader, (*cache)->HotList(100), UINT64_MAX, [] { return true; }),
            frames.size());
  EXPECT_EQ((*another)->Stats().frames, frames.size());
}

}  // namespace
}  // namespace rekindle::restore
