// How much is done where a store has many images and packs: as often as needed, and at once where it waits.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "dedup_store/format.h"
#include "dedup_store/hooked_store_testing.h"
#include "dedup_store/removal.h"

namespace rekindle::store {
namespace {

using Call = HookedDisk::Call;

class WorkCountTest : public HookedStoreTest {
 protected:
  static bool OfAPack(const HookedDisk::Operation& operation) {
    return absl::EndsWith(operation.path, ".pack");
  }
  // Images job:0 and so on, each with a pack of its own.
  void CommitImages(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      TestImage image;
      image.objects[kObject][0] = MakePages(100, i + 1);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("job:", i)));
    }
  }
};

TEST_F(WorkCountTest, WhatTheStoreTakesIsKnownWithoutItsPacksBeingOpened) {
  constexpr uint64_t kImages = 20;
  CommitImages(kImages);
  Reopen();
  std::atomic<uint64_t> opened{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kOpen && OfAPack(operation)) ++opened;
    return absl::OkStatus();
  };
  const auto stats = store_->Stats();
  RK_ASSERT_OK(stats);
  EXPECT_EQ(stats->packs, kImages);
  EXPECT_GE(stats->pack_bytes, kImages * 100 * kPageSize);
  EXPECT_EQ(opened, 0u);
  // Nor for the store's limit.
  LimitsChange change;
  change.store_max_bytes = 1;
  std::string warning;
  RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  TestImage another;
  another.objects[kObject][0] = MakePages(100, kImages + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(another.Commit(*store_, "job:more").status()));
  EXPECT_EQ(opened, 0u);
}

// Of a machine with many processors.
TEST_F(WorkCountTest, WriteBuffersAreForAsManyThreadsAsAnImageIsWorth) {
  constexpr uint64_t kMiB = 1 << 20;
  options_.worker_threads = 128;
  Reopen();
  std::atomic<uint64_t> buffers{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kNewWriteQueue && OfAPack(operation)) buffers = operation.bytes;
    return absl::OkStatus();
  };
  TestImage small;
  small.objects[kObject][0] = MakePages(12 * kMiB / kPageSize, 1);
  RK_ASSERT_OK(small.Commit(*store_, "small:1"));
  EXPECT_GT(buffers, 0u);
  EXPECT_LE(buffers, 16 * kMiB);
  // Nothing but the page of zeros: large, and stored in no time.
  constexpr uint64_t kLarge = 1200 * kMiB;
  void* const zeros = ::mmap(nullptr, kLarge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const absl::Cleanup unmap = [zeros] { ::munmap(zeros, kLarge); };
  NewImageOptions options;
  options.reference = "large:1";
  auto writer = store_->NewImage(options);
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages(kObject, 0, {static_cast<const std::byte*>(zeros), kLarge}));
  RK_ASSERT_OK((*writer)->Commit());
  EXPECT_GT(buffers, 64 * kMiB);
  EXPECT_LE(buffers, 160 * kMiB);
  hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
  small.ExpectIn(*store_, "small:1");
}

// On a disk that is nearly full an image needs room for what is new in it, not for what is taken ahead.
TEST_F(WorkCountTest, ALargeImageOfWhichLittleIsNewNeedsLittleRoom) {
  constexpr size_t kAllPages = 40'000, kNewPages = 100;
  constexpr uint64_t kFree = 2 * kMiB;
  std::atomic<uint64_t> taken{0}, refused{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call != Call::kAllocate || !OfAPack(operation)) return absl::OkStatus();
    if (operation.offset + operation.bytes > kFree) {
      ++refused;
      return absl::ResourceExhaustedError("the disk is full");
    }
    taken = operation.offset + operation.bytes;
    return absl::OkStatus();
  };
  TestImage image;
  image.objects[kObject][0] = MakePages(kAllPages - kNewPages, 0, Content::kZero) + MakePages(kNewPages, 1);
  RK_ASSERT_OK(image.Commit(*store_, "little:1"));
  EXPECT_GT(refused, 0u);
  EXPECT_GT(taken, kNewPages * kPageSize);
  image.ExpectIn(*store_, "little:1");
  image.objects[kObject][0] += MakePages(2 * kFree / kPageSize, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(image.Commit(*store_, "much:1").status()));
}

// Before a disk is asked for more than it has, which some give what they have and keep it from others.
TEST_F(WorkCountTest, NothingIsTakenAheadOfADiskThatIsNearlyFull) {
  constexpr size_t kAllPages = 40'000, kNewPages = 100;
  std::atomic<uint64_t> taken{0}, most{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call != Call::kAllocate || !OfAPack(operation)) return absl::OkStatus();
    taken = operation.offset + operation.bytes;
    most = std::max<uint64_t>(most, operation.bytes);
    return absl::OkStatus();
  };
  TestImage image;
  image.objects[kObject][0] = MakePages(kAllPages - kNewPages, 0, Content::kZero) + MakePages(kNewPages, 1);
  disk_.TellFree(100 * kMiB);
  RK_ASSERT_OK(image.Commit(*store_, "little:1"));
  EXPECT_GT(taken, kNewPages * kPageSize);
  EXPECT_LT(most, 8 * kMiB);
  image.ExpectIn(*store_, "little:1");
  disk_.TellFree(1000 * kMiB);
  image.objects[kObject][0] += MakePages(kNewPages, 2);
  RK_ASSERT_OK(image.Commit(*store_, "little:2"));
  EXPECT_GE(most, 64 * kMiB);
  image.ExpectIn(*store_, "little:2");
}

// Not by one thread after another.
TEST_F(WorkCountTest, PagesThatAnotherImageWasStoringAreComparedBySeveralThreads) {
  constexpr size_t kPages = 8 * 1024;
  TestImage image;
  image.objects[kObject][0] = MakePages(kPages, 1);
  absl::Notification claimed, deferred, two_read;
  const std::thread::id first = std::this_thread::get_id();
  absl::Mutex mutex;
  std::set<std::thread::id> readers;
  hook_ = [&](const HookedDisk::Operation& operation) {
    // What one thread reads for all when it opens the pack lies at its ends.
    const bool of_pages = operation.call == Call::kRead && OfAPack(operation) &&
                          operation.offset >= kPackHeaderBytes && operation.offset < kPages * kPageSize;
    if (!of_pages || !deferred.HasBeenNotified() || std::this_thread::get_id() == first)
      return absl::OkStatus();
    {
      absl::MutexLock lock(&mutex);
      if (readers.insert(std::this_thread::get_id()).second && readers.size() == 2) two_read.Notify();
    }
    EXPECT_TRUE(two_read.WaitForNotificationWithTimeout(absl::Minutes(1)));
    return absl::OkStatus();
  };
  const auto commit = [&](const std::string& reference, absl::Notification& reached,
                          absl::Notification* wait_for) {
    NewImageOptions options;
    options.reference = reference;
    auto writer = store_->NewImage(options);
    RK_ASSERT_OK(writer);
    const std::string& pages = image.objects[kObject][0];
    RK_ASSERT_OK(
        (*writer)->AddPages(kObject, 0, {reinterpret_cast<const std::byte*>(pages.data()), pages.size()}));
    const auto info = (*writer)->Commit([&](uint64_t done, uint64_t total) {
      if (done == total && !reached.HasBeenNotified()) {
        reached.Notify();
        if (wait_for != nullptr) wait_for->WaitForNotification();
      }
      return true;
    });
    RK_ASSERT_OK(info);
    EXPECT_EQ(info->stats.shared_bytes, wait_for != nullptr ? 0 : pages.size());
  };
  std::thread second([&] {
    claimed.WaitForNotification();
    commit("job:2", deferred, nullptr);
  });
  commit("job:1", claimed, &deferred);
  second.join();
  EXPECT_EQ(readers.size(), 2u);
  hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
  image.ExpectIn(*store_, "job:2");
}

TEST_F(WorkCountTest, ManyImagesAreRemovedInOneTransaction) {
  CommitImages(100);
  std::vector<ImageInfo> images = store_->List().value();
  images.resize(90);
  const ImageInfo& replaced = images[40];
  TestImage another;
  another.objects[kObject][0] = MakePages(10, 1000);
  RK_ASSERT_OK(another.Commit(*store_, replaced.reference, "", /*replace=*/true));
  std::atomic<int> syncs{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kSync && absl::StrContains(operation.path, "/catalog/")) ++syncs;
    return absl::OkStatus();
  };
  const auto removed = RemoveExactly(*store_, images);
  RK_ASSERT_OK(removed);
  EXPECT_LE(syncs, 2);
  ASSERT_EQ(removed->size(), images.size());
  for (size_t i = 0; i < images.size(); ++i) EXPECT_EQ((*removed)[i], i != 40) << i;
  EXPECT_EQ(store_->List()->size(), 11u);
  another.ExpectIn(*store_, replaced.reference);
  ExpectWhole();
}

TEST_F(WorkCountTest, WhatAnIndexFileHasIsMergedWithoutALookIntoItsPacks) {
  constexpr uint64_t kBefore = 9, kAll = 30;  // a merge, and more of them
  CommitImages(kBefore);
  const std::vector<std::string> names = ListDirectory(options_.path + "/packs").value();
  std::set<std::string> merged;
  for (const std::string& name : names) merged.insert(absl::StrCat(options_.path, "/packs/", name));
  const auto indexes = [&] {
    std::vector<std::string> found = ListDirectory(options_.path + "/index").value();
    std::erase_if(found, [](const std::string& name) { return !absl::EndsWith(name, ".idx"); });
    return found;
  };
  const std::vector<std::string> first = indexes();
  ASSERT_EQ(first.size(), 1u);
  Reopen();
  std::atomic<int> opened{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kOpen && merged.contains(operation.path)) ++opened;
    return absl::OkStatus();
  };
  const auto pages_of = [](uint64_t i) { return MakePages(100, i + 1); };
  for (uint64_t i = kBefore; i < kAll; ++i) {
    TestImage image;
    image.objects[kObject][0] = pages_of(i);
    RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("job:", i)));
  }
  EXPECT_EQ(opened, 0);
  EXPECT_NE(indexes(), first);
  // All of it is found.
  TestImage again;
  for (uint64_t i = 0; i < kAll; ++i) again.objects[absl::StrCat(kObject, i)][0] = pages_of(i);
  const auto info = again.Commit(*store_, "again:1");
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.shared_bytes, info->stats.logical_bytes);
  ExpectWhole();
}

// What gc has given back is not found again by way of the merge.
TEST_F(WorkCountTest, AMergeLeavesOutWhatIsDead) {
  TestImage image;
  image.objects[kObject][0] = MakePages(2000, 1);
  RK_ASSERT_OK(image.Commit(*store_, "job:first"));
  CommitImages(8);
  // Half of the first pack lives on.
  TestImage half;
  half.objects[kObject][0] = MakePages(2000, 1).substr(0, 1000 * kPageSize);
  RK_ASSERT_OK(half.Commit(*store_, "job:half"));
  RK_ASSERT_OK(store_->Remove("job:first"));
  RK_ASSERT_OK(store_->Gc({}));
  Reopen();
  for (uint64_t i = 0; i < 12; ++i) {
    TestImage more;
    more.objects[kObject][0] = MakePages(100, 100 + i);
    RK_ASSERT_OK(more.Commit(*store_, absl::StrCat("more:", i)));
  }
  ExpectWhole();
  const auto info = image.Commit(*store_, "job:again");
  RK_ASSERT_OK(info);
  EXPECT_GE(info->stats.shared_bytes, 1000 * kPageSize);
  EXPECT_LT(info->stats.shared_bytes, 1500 * kPageSize);
  image.ExpectIn(*store_, "job:again");
  ExpectWhole();
}

TEST_F(WorkCountTest, GcOpensNoPackOfWhichAllIsNeeded) {
  CommitImages(10);
  RK_ASSERT_OK(store_->Remove("job:3"));
  std::atomic<int> opened{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kOpen && operation.writable && OfAPack(operation)) ++opened;
    return absl::OkStatus();
  };
  const auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 1u);
  EXPECT_EQ(opened, 1);
  ExpectWhole();
}

TEST_F(WorkCountTest, GcRemovesManyPacksInOneTransaction) {
  CommitImages(100);
  for (int i = 0; i < 90; ++i) RK_ASSERT_OK(store_->Remove(absl::StrCat("job:", i)));
  std::atomic<int> syncs{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kSync && absl::StrContains(operation.path, "/catalog/")) ++syncs;
    return absl::OkStatus();
  };
  const auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 90u);
  EXPECT_GT(report->bytes_freed, 90u * 100 * kPageSize);
  EXPECT_LE(syncs, 10);
  EXPECT_EQ(ListDirectory(options_.path + "/packs")->size(), 10u);
  ExpectWhole();
}

TEST_F(WorkCountTest, APackThatIsReadIsNotAmongThoseThatGo) {
  CommitImages(20);
  auto reader = store_->OpenImage("job:7");
  RK_ASSERT_OK(reader);
  for (int i = 0; i < 20; ++i) RK_ASSERT_OK(store_->Remove(absl::StrCat("job:", i)));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 19u);
  EXPECT_EQ(report->packs_in_use, 1u);
  std::string pages(100 * kPageSize, 'x');
  RK_ASSERT_OK((*reader)->ReadPages(kObject, 0, {reinterpret_cast<std::byte*>(pages.data()), pages.size()}));
  EXPECT_TRUE(pages == MakePages(100, 8));
  reader->reset();
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 1u);
}

TEST_F(WorkCountTest, OfOtherImagesOnlyManifestsAreRead) {
  constexpr int kOthers = 20;
  CommitImages(kOthers + 1);
  std::atomic<int> reads{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kRead && OfAPack(operation)) ++reads;
    return absl::OkStatus();
  };
  RK_ASSERT_OK(store_->WhereBytesAre("job:0"));
  // Header, footer and manifest; of its own pack the frames too.
  EXPECT_LE(reads, 3 * kOthers + 6);
}

// Whose pages count for whom is remembered: of a store with many images only the new one's manifest is read.
TEST_F(WorkCountTest, ALimitOfTheOwnerCostsNoLookAtOtherImages) {
  constexpr uint64_t kImages = 30, kGone = 6;
  TestImage image;
  image.objects[kObject][0] = MakePages(600, 1);
  uint64_t taken = 0;
  const auto commit = [&] {
    image.objects[kObject][0].replace(taken * 10 * kPageSize, 10 * kPageSize, MakePages(10, 100 + taken));
    RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("job:", taken),
                              taken > 0 ? "job:" + std::to_string(taken - 1) : ""));
    ++taken;
  };
  while (taken < kImages) commit();
  for (uint64_t i = 0; i < kGone; ++i) RK_ASSERT_OK(store_->Remove(absl::StrCat("job:", i)));
  std::atomic<uint64_t> opened{0};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kOpen && OfAPack(operation)) ++opened;
    return absl::OkStatus();
  };
  const auto opened_by_commit = [&] {
    opened = 0;
    commit();
    return opened.load();
  };
  const uint64_t without = opened_by_commit();
  LimitsChange change;
  change.owner = {0, 1000 * kMiB};
  std::string warning;
  RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  commit();  // looks at all
  // What it builds upon has grown by some packs.
  EXPECT_LE(opened_by_commit(), without + 10);
}

TEST_F(WorkCountTest, AnImagesPacksAreOpenedSideBySide) {
  constexpr uint64_t kPacks = 32;
  CommitImages(kPacks);
  TestImage all;
  for (uint64_t i = 0; i < kPacks; ++i) all.objects[kObject][i * 100 * kPageSize] = MakePages(100, i + 1);
  RK_ASSERT_OK(all.Commit(*store_, "all:1"));
  Reopen();
  // Who opens one waits until somebody else does.
  absl::Mutex mutex;
  int opening = 0;
  bool met = false;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call != Call::kLock || !OfAPack(operation)) return absl::OkStatus();
    absl::MutexLock lock(&mutex);
    // The first one is opened for the manifest, and alone.
    if (++opening <= 1) return absl::OkStatus();
    met |= opening > 2;
    if (!met) mutex.AwaitWithTimeout(absl::Condition(&met), absl::Seconds(30));
    return met ? absl::OkStatus() : absl::InternalError("it is opened alone");
  };
  auto reader = store_->OpenImage("all:1");
  RK_ASSERT_OK(reader);
  hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
  all.ExpectIn(*store_, "all:1");
}

}  // namespace
}  // namespace rekindle::store
