// Quotas hold when the images go that brought what others still need.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uid_t kAnna = 1000, kBert = 1001;
constexpr uint64_t kImagePages = 512, kBytes = kImagePages * kPageSize;

class InheritedFramesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    image_.objects[kObject][0] = MakePages(kImagePages, 1);
  }

  // With the same memory but for one page.
  absl::StatusOr<ImageInfo> Take(const std::string& reference, uid_t owner, bool replace = false) {
    image_.objects[kObject][0].replace(0, kPageSize, MakePages(1, ++seed_));
    NewImageOptions options = Named(reference);
    options.owner = owner;
    options.replace = replace;
    return image_.Commit(*store_, options);
  }
  void Limit(uid_t owner, uint64_t bytes) {
    LimitsChange change;
    change.owner = {owner, bytes};
    std::string warning;
    RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  }
  void Remove(const std::string& reference) {
    RK_ASSERT_OK(store_->Remove(reference));
    RK_ASSERT_OK(store_->Gc({}));
  }
  // What this process remembers tells the same as the store does.
  uint64_t UseOf(uid_t owner) {
    auto remembered = MeasureOwners(*store_);
    EXPECT_TRUE(remembered.ok()) << remembered.status();
    Reopen();
    auto anew = MeasureOwners(*store_);
    EXPECT_TRUE(anew.ok()) << anew.status();
    EXPECT_EQ((*remembered)[owner].bytes, (*anew)[owner].bytes);
    EXPECT_EQ((*remembered)[owner].images, (*anew)[owner].images);
    return (*anew)[owner].bytes;
  }

  TestImage image_;
  uint64_t seed_ = 100;
};

TEST_F(InheritedFramesTest, WhatTheNextImageNeedsCountsForIt) {
  RK_ASSERT_OK(Take("a:1", kAnna));
  RK_ASSERT_OK(Take("a:2", kAnna));
  const uint64_t both = UseOf(kAnna);
  EXPECT_GE(both, kBytes);
  EXPECT_LT(both, kBytes + 32 * kPageSize) << "what both have counts once";
  for (int i = 3; i < 8; ++i) {
    Remove(absl::StrCat("a:", i - 2));
    const uint64_t one = UseOf(kAnna);
    EXPECT_GE(one, kBytes);
    EXPECT_LE(one, both);
    RK_ASSERT_OK(Take(absl::StrCat("a:", i), kAnna));
  }
  Remove("a:6");
  Remove("a:7");
  EXPECT_EQ(UseOf(kAnna), 0u);
}

// As jobs do that keep their last image.
TEST_F(InheritedFramesTest, AQuotaBoundsWhatIsOnDisk) {
  Limit(kAnna, 3 * kBytes);
  int jobs = 0;
  for (; jobs < 6; ++jobs) {
    image_.objects[kObject][0] = MakePages(kImagePages, static_cast<uint64_t>(jobs));
    auto first = Take(absl::StrCat("job", jobs, ":1"), kAnna);
    if (!first.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(first.status())) << first.status();
      break;
    }
    if (!Take(absl::StrCat("job", jobs, ":2"), kAnna).ok()) break;
    Remove(absl::StrCat("job", jobs, ":1"));
  }
  EXPECT_EQ(jobs, 2);
}

TEST_F(InheritedFramesTest, AnImageThatReplacesItsParentIsHeldAgainstAllThatItNeeds) {
  RK_ASSERT_OK(Take("a:latest", kAnna));
  Limit(kAnna, kBytes + 40 * kPageSize);
  for (int i = 0; i < 3; ++i) RK_ASSERT_OK(Take("a:latest", kAnna, /*replace=*/true));
  EXPECT_GE(UseOf(kAnna), kBytes);
  // It makes room for another content.
  image_.objects[kObject][0] = MakePages(kImagePages, 2);
  RK_ASSERT_OK(Take("a:latest", kAnna, /*replace=*/true));
  Limit(kAnna, kBytes / 2);
  auto refused = Take("a:latest", kAnna, /*replace=*/true);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
}

TEST_F(InheritedFramesTest, WhatSomebodyElseNeedsCountsForHimOnceItsOwnerLetsItGo) {
  RK_ASSERT_OK(Take("a:1", kAnna));
  RK_ASSERT_OK(Take("b:1", kBert));
  EXPECT_GE(UseOf(kAnna), kBytes);
  EXPECT_LT(UseOf(kBert), 32 * kPageSize);
  Remove("a:1");
  EXPECT_EQ(UseOf(kAnna), 0u);
  EXPECT_GE(UseOf(kBert), kBytes - 64 * kPageSize);
  Limit(kBert, kBytes / 2);
  EXPECT_TRUE(absl::IsResourceExhausted(Take("b:2", kBert).status()));
  Remove("b:1");
  EXPECT_EQ(UseOf(kBert), 0u);
}

// Between `rm` and `gc`.
TEST_F(InheritedFramesTest, WhatNobodyNeededAnyMoreCountsForWhoTakesItUp) {
  RK_ASSERT_OK(Take("a:1", kAnna));
  RK_ASSERT_OK(store_->Remove("a:1"));
  EXPECT_EQ(UseOf(kAnna), 0u);
  Limit(kBert, kBytes / 2);
  auto refused = Take("b:1", kBert);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  Limit(kBert, 0);
  RK_ASSERT_OK(Take("b:1", kBert));
  EXPECT_GE(UseOf(kBert), kBytes - 64 * kPageSize);
}

// Images of three users come and go in any order; what is remembered of them tells what a process tells that
// has never looked before.
TEST_F(InheritedFramesTest, WhatIsRememberedIsWhatIsThereWhateverHappens) {
  constexpr uid_t kUsers[] = {kAnna, kBert, 1002};
  constexpr size_t kPages = 64, kSteps = 100;
  for (const uid_t user : kUsers) Limit(user, uint64_t{1} << 40);
  std::mt19937_64 random(7);
  std::vector<std::string> there;
  const auto take = [&](const std::string& name, bool replace) {
    // Most pages are some of those that others have brought.
    std::string pages;
    for (size_t i = 0; i < kPages; i += 8)
      pages += MakePages(8, random() % 4 == 0 ? random() : random() % 40);
    image_.objects[kObject][0] = pages;
    NewImageOptions options = Named(name);
    options.owner = kUsers[random() % std::size(kUsers)];
    options.replace = replace;
    options.replace_others = replace;
    RK_ASSERT_OK(image_.Commit(*store_, options));
    if (!replace) there.push_back(name);
  };
  std::map<uid_t, uint64_t> most;
  for (size_t step = 0; step < kSteps; ++step) {
    switch (random() % 8) {
      case 0:
        RK_ASSERT_OK(store_->Gc({}));
        break;
      case 1:
      case 2:
      case 3: {
        if (there.empty()) break;
        const auto victim = there.begin() + static_cast<ptrdiff_t>(random() % there.size());
        RK_ASSERT_OK(store_->Remove(*victim));
        there.erase(victim);
        break;
      }
      case 4:
        take("latest:1", /*replace=*/true);
        break;
      default:
        take(absl::StrCat("job:", step), /*replace=*/false);
    }
    if (random() % 3 == 0) continue;
    auto remembered = MeasureOwners(*store_);
    RK_ASSERT_OK(remembered);
    auto other = Store::Open(options_);
    RK_ASSERT_OK(other);
    auto anew = MeasureOwners(**other);
    RK_ASSERT_OK(anew);
    for (const uid_t user : kUsers) {
      ASSERT_EQ((*remembered)[user].bytes, (*anew)[user].bytes) << "user " << user << " after step " << step;
      most[user] = std::max(most[user], (*anew)[user].bytes);
    }
  }
  for (const uid_t user : kUsers) EXPECT_GT(most[user], kPages * kPageSize);
}

}  // namespace
}  // namespace rekindle::store
