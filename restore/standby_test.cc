#include "restore/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::restore {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

CloneOptions Options(const std::string& image, const std::string& name = "") {
  CloneOptions options;
  options.image = image;
  options.name = name;
  return options;
}

// Stands in for the making of copies: counts them, and can make them fail.
class Maker {
 public:
  StandbyPool::Make make() {
    return [this](const StandbyKind& kind, int cancel_fd, const StandbyPool::Park& park) {
      return MakeOne(kind, cancel_fd, park);
    };
  }

  absl::StatusOr<CloneResult> MakeOne(const StandbyKind& kind, int cancel_fd, const StandbyPool::Park& park) {
    {
      absl::MutexLock lock(&mutex_);
      ++begun_;
      if (!failure_.ok()) {
        ++ended_;
        return failure_;
      }
    }
    absl::StatusOr<CloneOptions> wanted = park();
    pollfd entry{cancel_fd, POLLIN, 0};
    const bool cancelled = ::poll(&entry, 1, 0) > 0;
    absl::MutexLock lock(&mutex_);
    ++ended_;
    if (!wanted.ok()) {
      cancelled_ += cancelled ? 1 : 0;
      return wanted.status();
    }
    EXPECT_EQ(wanted->image, kind.image);
    names_.push_back(wanted->name);
    if (!late_failure_.ok()) return late_failure_;
    CloneResult result;
    result.root = ++started_;
    return result;
  }

  void AwaitBegun(int count) {
    auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return begun_ >= count; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience)) << begun_;
  }
  void AwaitEnded(int count) {
    auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_ >= count; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience)) << ended_;
  }

  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_), late_failure_ ABSL_GUARDED_BY(mutex_);
  int begun_ ABSL_GUARDED_BY(mutex_) = 0, ended_ ABSL_GUARDED_BY(mutex_) = 0;
  int started_ ABSL_GUARDED_BY(mutex_) = 0, cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

// The copy that stands by, once there is one.
absl::StatusOr<CloneResult> ClaimOne(StandbyPool& pool, const CloneOptions& options) {
  for (;;) {
    auto claimed = pool.Claim(options);
    if (claimed) return *std::move(claimed);
    std::this_thread::yield();
  }
}

TEST(StandbyPoolTest, OneOfAWantedKindIsMadeAndStartedWithWhatIsAsked) {
  Maker maker;
  StandbyPool pool(maker.make(), 1);
  EXPECT_FALSE(pool.Claim(Options("a")).has_value());
  pool.Want(Options("a"), 4096);
  auto claimed = ClaimOne(pool, Options("a", "first"));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_EQ(claimed->root, 1);
  // Another one takes its place.
  claimed = ClaimOne(pool, Options("a", "second"));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  absl::MutexLock lock(&maker.mutex_);
  EXPECT_THAT(maker.names_, testing::ElementsAre("first", "second"));
}

TEST(StandbyPoolTest, KindsAreNotMixed) {
  Maker maker;
  StandbyPool pool(maker.make(), 2);
  pool.Want(Options("a"), 4096);
  maker.AwaitBegun(2);
  CloneOptions other = Options("a");
  other.network = Network::kNone;
  EXPECT_FALSE(pool.Claim(other).has_value());
  other = Options("a");
  other.fill = Fill::kNever;
  EXPECT_FALSE(pool.Claim(other).has_value());
  other = Options("a");
  other.limits.memory_bytes = 1 << 20;
  EXPECT_FALSE(pool.Claim(other).has_value());
  EXPECT_FALSE(pool.Claim(Options("b")).has_value());
  EXPECT_TRUE(ClaimOne(pool, Options("a")).ok());
}

TEST(StandbyPoolTest, WhatStandsByEndsWithThePool) {
  Maker maker;
  {
    StandbyPool pool(maker.make(), 3);
    pool.Want(Options("a"), 4096);
    maker.AwaitBegun(3);
  }
  absl::MutexLock lock(&maker.mutex_);
  EXPECT_EQ(maker.ended_, 3);
  EXPECT_EQ(maker.cancelled_, 3);
  EXPECT_EQ(maker.started_, 0);
}

TEST(StandbyPoolTest, OneThatCannotBeMadeIsNotTriedOverAndOver) {
  Maker maker;
  {
    absl::MutexLock lock(&maker.mutex_);
    maker.failure_ = absl::InternalError("no");
  }
  StandbyPool pool(maker.make(), 2);
  pool.Want(Options("a"), 4096);
  maker.AwaitEnded(1);
  EXPECT_FALSE(pool.Claim(Options("a")).has_value());
  pool.Want(Options("b"), 4096);  // another kind is not held back
  maker.AwaitEnded(2);
  pool.Want(Options("a"), 4096);
  absl::MutexLock lock(&maker.mutex_);
  EXPECT_EQ(maker.begun_, 2);
}

TEST(StandbyPoolTest, WhoGetsOneThatFailsIsToMakeHisOwn) {
  Maker maker;
  {
    absl::MutexLock lock(&maker.mutex_);
    maker.late_failure_ = absl::InternalError("it has died");
  }
  StandbyPool pool(maker.make(), 1);
  pool.Want(Options("a"), 4096);
  maker.AwaitBegun(1);
  while (true) {
    EXPECT_FALSE(pool.Claim(Options("a")).has_value());
    absl::MutexLock lock(&maker.mutex_);
    if (!maker.names_.empty()) break;
  }
}

// Room for so many copies of images that need next to nothing themselves.
StandbyBounds RoomFor(uint64_t copies) {
  StandbyBounds bounds;
  bounds.bytes = copies * (uint64_t{7} << 20);
  bounds.least_available = 0;
  return bounds;
}

TEST(StandbyPoolTest, ThereAreAsManyAsThereIsRoomFor) {
  Maker maker;
  StandbyPool pool(maker.make(), 2, RoomFor(20));
  for (int i = 0; i < 10; ++i) pool.Want(Options(absl::StrCat(i)), 4096);
  maker.AwaitBegun(20);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(ClaimOne(pool, Options(absl::StrCat(i))).ok());
}

TEST(StandbyPoolTest, WhatIsUsedAgainDisplacesWhatWasUsedLongestAgo) {
  Maker maker;
  StandbyBounds bounds = RoomFor(2);
  bounds.not_displaced = absl::ZeroDuration();
  StandbyPool pool(maker.make(), 1, bounds);
  pool.Want(Options("a"), 4096);
  maker.AwaitBegun(1);
  pool.Want(Options("b"), 4096);
  maker.AwaitBegun(2);
  pool.Want(Options("c"), 4096);
  pool.Want(Options("c"), 4096);
  EXPECT_TRUE(ClaimOne(pool, Options("c")).ok());
  EXPECT_FALSE(pool.Claim(Options("a")).has_value());
  EXPECT_TRUE(ClaimOne(pool, Options("b")).ok());
}

TEST(StandbyPoolTest, WhatIsUsedFarMoreOftenDisplacesBeforeTheTime) {
  Maker maker;
  StandbyBounds bounds = RoomFor(1);
  bounds.not_displaced = absl::InfiniteDuration();
  bounds.never_displaced = absl::ZeroDuration();
  StandbyPool pool(maker.make(), 1, bounds);
  pool.Want(Options("a"), 4096);
  maker.AwaitBegun(1);
  for (int i = 0; i < 3; ++i) pool.Want(Options("b"), 4096);
  EXPECT_TRUE(ClaimOne(pool, Options("a")).ok());
  maker.AwaitBegun(2);  // of a again: b was not asked for often enough
  for (int i = 0; i < 40; ++i) pool.Want(Options("b"), 4096);
  EXPECT_TRUE(ClaimOne(pool, Options("b")).ok());
  EXPECT_FALSE(pool.Claim(Options("a")).has_value());
}

TEST(StandbyPoolTest, OnesOfAnImageThatIsForgottenEnd) {
  Maker maker;
  StandbyPool pool(maker.make(), 2);
  pool.Want(Options("a"), 4096);
  pool.Want(Options("b"), 4096);
  maker.AwaitBegun(4);
  pool.Forget("a");
  maker.AwaitEnded(2);
  EXPECT_FALSE(pool.Claim(Options("a")).has_value());
  EXPECT_TRUE(ClaimOne(pool, Options("b")).ok());
}

TEST(StandbyPoolTest, TooMuchMemoryIsNotSpentOnThem) {
  Maker maker;
  StandbyPool pool(maker.make(), 2, RoomFor(10));
  pool.Want(Options("large"), uint64_t{1} << 30);
  pool.Want(Options("small"), 4096);
  EXPECT_TRUE(ClaimOne(pool, Options("small")).ok());
  EXPECT_FALSE(pool.Claim(Options("large")).has_value());
}

}  // namespace
}  // namespace rekindle::restore
