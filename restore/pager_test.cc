#include "restore/pager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/packet_socket.h"
#include "dedup_store/store_testing.h"

namespace rekindle::restore {
namespace {

using store::StatusOf;

constexpr absl::Duration kAnswersWithin = absl::Minutes(1);

// How many have come.
class Count {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  bool WaitFor(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return count_ == count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kAnswersWithin);
  }

 private:
  absl::Mutex mutex_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// As a client that wants all memory of a copy.
class LongWork : public PagerSource {
 public:
  LongWork(Count& begun, const absl::Notification& end) : begun_(begun), end_(end) {
    ::eventfd_write(always_.get(), 1);
  }
  int fd() const override { return always_.get(); }
  bool takes_long() const override { return true; }
  Next OnReady() override {
    begun_.Add();
    end_.WaitForNotification();
    return Next::kDone;
  }

 private:
  const UniqueFd always_{::eventfd(0, EFD_CLOEXEC)};
  Count& begun_;
  const absl::Notification& end_;
};

class PagerTest : public store::StoreTest {};

TEST_F(PagerTest, FaultsAreServedWhileAllThatIsAskedTakesLong) {
  Reopen();
  const std::string path = absl::StrCat(folder_->path(), "/pager.sock");
  auto listener = ListenForPackets(path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  PagerOptions options;
  options.store = store_->path();
  options.cache_bytes = 16 << 20;
  options.idle_exit = absl::ZeroDuration();
  auto pager = Pager::Make(options, *std::move(listener));
  ASSERT_TRUE(pager.ok()) << pager.status();
  (*pager)->ClientsChanged(1);  // until the end
  Count begun;
  absl::Notification end, answered;
  for (size_t i = 0; i < options.client_threads; ++i) (*pager)->Add(std::make_shared<LongWork>(begun, end));
  std::thread running([&] { (*pager)->Run(); });
  EXPECT_TRUE(begun.WaitFor(options.client_threads));
  // What answers a fault.
  (*pager)->Defer([&] { answered.Notify(); });
  EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kAnswersWithin));
  end.Notify();
  (*pager)->ClientsChanged(-1);
  running.join();
}

TEST_F(PagerTest, OneOwnersFillsHoldUpNobodyElse) {
  Reopen();
  const std::string path = absl::StrCat(folder_->path(), "/pager.sock");
  auto listener = ListenForPackets(path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  PagerOptions options;
  options.store = store_->path();
  options.cache_bytes = 16 << 20;
  options.idle_exit = absl::ZeroDuration();
  auto pager = Pager::Make(options, *std::move(listener));
  ASSERT_TRUE(pager.ok()) << pager.status();
  (*pager)->ClientsChanged(1);  // until the end
  std::thread running([&] { (*pager)->Run(); });
  absl::Notification runs;
  (*pager)->Defer([&] { runs.Notify(); });
  ASSERT_TRUE(runs.WaitForNotificationWithTimeout(kAnswersWithin));
  Count begun;
  absl::Notification end, others;
  for (size_t i = 0; i < 2 * options.fill_threads; ++i) {
    (*pager)->LeaveToFillers(1000, [&] {
      begun.Add();
      end.WaitForNotification();
    });
  }
  EXPECT_TRUE(begun.WaitFor(options.fill_threads - 1));
  (*pager)->LeaveToFillers(1001, [&] { others.Notify(); });
  EXPECT_TRUE(others.WaitForNotificationWithTimeout(kAnswersWithin));
  auto client = ConnectForPackets(path);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(SendPacket(client->get(), R"({"do":"stats"})").ok());
  auto answer = ReceivePacket(client->get());
  EXPECT_TRUE(answer.ok() && answer->has_value());
  *client = UniqueFd();
  end.Notify();
  (*pager)->ClientsChanged(-1);
  running.join();
}

TEST_F(PagerTest, OneThreadThatServesFaultsDoesNotWaitForTheDisk) {
  Reopen();
  auto listener = ListenForPackets(absl::StrCat(folder_->path(), "/pager.sock"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  PagerOptions options;
  options.store = store_->path();
  options.cache_bytes = 16 << 20;
  options.threads = 3;
  auto pager = Pager::Make(options, *std::move(listener));
  ASSERT_TRUE(pager.ok()) << pager.status();
  EXPECT_TRUE((*pager)->MayWaitForDisk());
  EXPECT_TRUE((*pager)->MayWaitForDisk());
  EXPECT_FALSE((*pager)->MayWaitForDisk());
  (*pager)->HasWaitedForDisk();
  EXPECT_TRUE((*pager)->MayWaitForDisk());
}

// One that waits for nothing but events, since it has a client and no copy.
TEST_F(PagerTest, WorkForTheNextTickIsDoneAndTheLastClientsEndSeen) {
  Reopen();
  auto listener = ListenForPackets(absl::StrCat(folder_->path(), "/pager.sock"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  PagerOptions options;
  options.store = store_->path();
  options.cache_bytes = 16 << 20;
  options.idle_exit = absl::ZeroDuration();
  auto pager = Pager::Make(options, *std::move(listener));
  ASSERT_TRUE(pager.ok()) << pager.status();
  (*pager)->ClientsChanged(1);  // until the end
  std::thread running([&] { (*pager)->Run(); });
  absl::Notification first, again;
  (*pager)->DeferToTick([&] {
    (*pager)->DeferToTick([&] { again.Notify(); });
    first.Notify();
  });
  EXPECT_TRUE(first.WaitForNotificationWithTimeout(kAnswersWithin));
  EXPECT_TRUE(again.WaitForNotificationWithTimeout(kAnswersWithin));
  // Another client comes and goes: the pager is there for the first one.
  (*pager)->ClientsChanged(1);
  (*pager)->ClientsChanged(-1);
  absl::Notification still;
  (*pager)->DeferToTick([&] { still.Notify(); });
  EXPECT_TRUE(still.WaitForNotificationWithTimeout(kAnswersWithin));
  (*pager)->ClientsChanged(-1);
  running.join();
}

class TidyPagerTest : public PagerTest {
 protected:
  static constexpr uint64_t kAddress = 1 << 20;
  static constexpr size_t kPages = 2048;  // of each part

  void SetUp() override {
    PagerTest::SetUp();
    Reopen();
    auto listener = ListenForPackets(absl::StrCat(folder_->path(), "/pager.sock"));
    ASSERT_TRUE(listener.ok()) << listener.status();
    PagerOptions options;
    options.store = store_->path();
    options.cache_bytes = 64 << 20;
    auto pager = Pager::Make(options, *std::move(listener));
    ASSERT_TRUE(pager.ok()) << pager.status();
    pager_ = *std::move(pager);
  }

  void Commit(const std::string& reference, const std::vector<uint64_t>& seeds) {
    store::TestImage image;
    for (uint64_t seed : seeds)
      image.objects[store::kObject][kAddress * seed * 16] = store::MakePages(kPages, seed);
    RK_ASSERT_OK(image.Commit(*store_, reference));
  }

  // All frames of what was made from `seed`, which are in the cache then.
  std::set<store::FrameId> Load(const std::string& reference, uint64_t seed) {
    std::set<store::FrameId> frames;
    auto image = store_->OpenImage(reference);
    EXPECT_TRUE(image.ok()) << image.status();
    const auto layout = (*image)->Layout(store::kObject);
    EXPECT_TRUE(layout.ok()) << layout.status();
    for (const store::StoredRun& run : *layout) {
      if (run.address / (kAddress * 16) != seed) continue;
      auto pin = pager_->cache().GetOrLoad(**image, run.frame);
      EXPECT_TRUE(pin.ok()) << pin.status();
      frames.insert(run.frame);
    }
    return frames;
  }

  std::set<store::FrameId> Cached() const {
    const std::vector<store::FrameId> frames = pager_->cache().Frames();
    return {frames.begin(), frames.end()};
  }

  std::unique_ptr<Pager> pager_;
};

TEST_F(TidyPagerTest, FramesThatGcHasFreedGoAndThoseOfOtherImagesStay) {
  Commit("gone:1", {1, 2});
  Commit("stays:1", {2, 3});
  Load("gone:1", 1);
  std::set<store::FrameId> needed = Load("gone:1", 2);
  EXPECT_EQ(Load("stays:1", 2), needed);
  needed.merge(Load("stays:1", 3));
  const std::set<store::FrameId> all = Cached();
  ASSERT_EQ(all.size(), needed.size() / 2 * 3);
  const uint64_t before = pager_->cache().Stats().memory_bytes;
  pager_->DiscardFreedFrames();
  EXPECT_EQ(Cached(), all);

  RK_ASSERT_OK(store_->Remove("gone:1"));
  RK_ASSERT_OK(store_->Gc({}));
  pager_->ForgetRemovedImages();
  pager_->DiscardFreedFrames();
  EXPECT_EQ(Cached(), needed);
  EXPECT_EQ(pager_->cache().Stats().bytes, 2 * kPages * store::kPageSize);
  EXPECT_LT(pager_->cache().Stats().memory_bytes, before);

  RK_ASSERT_OK(store_->Remove("stays:1"));
  RK_ASSERT_OK(store_->Gc({}));
  pager_->ForgetRemovedImages();
  pager_->DiscardFreedFrames();
  EXPECT_TRUE(Cached().empty());
  EXPECT_EQ(pager_->cache().Stats().memory_bytes, 0u);
}

TEST_F(TidyPagerTest, WhatIsReadKeepsItsFrames) {
  Commit("gone:1", {1});
  const std::set<store::FrameId> frames = Load("gone:1", 1);
  auto reader = store_->OpenImage("gone:1");
  RK_ASSERT_OK(reader);
  RK_ASSERT_OK(store_->Remove("gone:1"));
  RK_ASSERT_OK(store_->Gc({}));
  pager_->ForgetRemovedImages();
  pager_->DiscardFreedFrames();
  EXPECT_EQ(Cached(), frames);
  reader->reset();
  RK_ASSERT_OK(store_->Gc({}));
  pager_->ForgetRemovedImages();
  pager_->DiscardFreedFrames();
  EXPECT_TRUE(Cached().empty());
}

// One that ends for want of clients is not there any more for whoever comes by its name.
TEST_F(PagerTest, WhoeverReachesItIsAnswered) {
  Reopen();
  const std::string path = absl::StrCat(folder_->path(), "/pager.sock");
  auto listener = ListenForPackets(path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  PagerOptions options;
  options.store = store_->path();
  options.cache_bytes = 16 << 20;
  options.idle_exit = absl::ZeroDuration();
  auto pager = Pager::Make(options, *std::move(listener));
  ASSERT_TRUE(pager.ok()) << pager.status();
  std::thread running([&] { (*pager)->Run(); });
  absl::StatusOr<UniqueFd> client;
  for (bool answered = true; answered && (client = ConnectForPackets(path)).ok();) {
    answered = false;
    if (SendPacket(client->get(), R"({"do":"stats"})").ok()) {
      auto answer = ReceivePacket(client->get());
      answered = answer.ok() && answer->has_value();
    }
    EXPECT_TRUE(answered);
    client = UniqueFd();
    absl::SleepFor(absl::Milliseconds(5));  // it may see that it has no client
  }
  running.join();
  EXPECT_TRUE(absl::IsNotFound(ConnectForPackets(path).status()));
  EXPECT_THAT(ListDirectory(folder_->path()).value(),
              testing::Not(testing::Contains(testing::StartsWith("pager.sock"))));
}

}  // namespace
}  // namespace rekindle::restore
