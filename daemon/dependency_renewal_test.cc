#include "daemon/dependency_renewal.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(1), kNotHere = absl::Hours(10);

class DependencyRenewalTest : public ::testing::Test {
 protected:
  DependencyRenewal::Work Work() {
    return {[this] {
              absl::MutexLock lock(&mutex_);
              ++looks_;
              return in_use_;
            },
            [this](const std::string& reference) -> std::optional<std::string> {
              absl::MutexLock lock(&mutex_);
              auto found = changed_.find(reference);
              return found == changed_.end() ? std::nullopt : std::optional(found->second);
            },
            [this](const std::string& reference, const Cancellation& cancel) {
              absl::MutexLock lock(&mutex_);
              renewed_.push_back(reference);
              if (std::exchange(lacks_threads_, false))
                throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
              while (hangs_ && !cancel.cancelled()) mutex_.AwaitWithTimeout(absl::Condition(&never_), kSoon);
              if (mends_) changed_.erase(reference);
              return mends_ ? absl::OkStatus() : absl::UnavailableError("no");
            },
            [this] {
              absl::MutexLock lock(&mutex_);
              has_begun_ = true;
              return without_;
            },
            [this](const DependencyRenewal::Function& function,
                   const Cancellation& /*cancel*/) -> absl::StatusOr<bool> {
              absl::MutexLock lock(&mutex_);
              made_.push_back(function);
              if (told_ != nullptr && !others_make_it_) told_->ImageMade();
              if (told_ != nullptr && others_make_it_)
                std::thread([told = told_] { told->ImageMade(); }).join();
              if (mends_) without_.erase(function);
              return mends_ ? absl::StatusOr<bool>(true) : absl::UnavailableError("no");
            }};
  }
  void AwaitMade(size_t times) {
    absl::MutexLock lock(&mutex_);
    const auto so_often = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return made_.size() >= times; };
    mutex_.Await(absl::Condition(&so_often));
  }
  void AwaitRenewed(size_t times) {
    absl::MutexLock lock(&mutex_);
    const auto so_often = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return renewed_.size() >= times; };
    mutex_.Await(absl::Condition(&so_often));
  }
  // It knows what there was before.
  void AwaitBegun() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&has_begun_));
  }
  void AwaitLooks(int more) {
    absl::MutexLock lock(&mutex_);
    const int wanted = looks_ + more;
    const auto so_often = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return looks_ >= wanted; };
    mutex_.Await(absl::Condition(&so_often));
  }

  absl::Mutex mutex_;
  std::set<std::string> in_use_ = {"a", "b"};
  std::map<std::string, std::string> changed_;
  std::vector<std::string> renewed_;
  std::map<DependencyRenewal::Function, DependencyRenewal::Lack> without_;
  std::vector<DependencyRenewal::Function> made_;
  DependencyRenewal* told_ = nullptr;  // of what an attempt has made before it failed
  bool others_make_it_ = false;        // meanwhile
  int looks_ = 0;
  bool mends_ = true, hangs_ = false, never_ = false, lacks_threads_ = false;
  bool has_begun_ = false;
};

TEST_F(DependencyRenewalTest, MakesThoseAnewThatHaveChangedAndAreUsed) {
  changed_ = {{"b", "x has changed"}, {"c", "nobody uses it"}};
  const DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon});
  AwaitRenewed(1);
  AwaitLooks(3);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(renewed_, std::vector<std::string>{"b"});
}

TEST_F(DependencyRenewalTest, WhereThereCanBeNoMoreThreadsItTriesAgain) {
  changed_ = {{"a", "changed"}};
  lacks_threads_ = true;
  const DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon});
  AwaitRenewed(2);
  AwaitLooks(2);
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(changed_.empty());
}

TEST_F(DependencyRenewalTest, LooksWhenItIsTold) {
  DependencyRenewal renewal(Work(), {kNotHere, kNotHere, kSoon, kSoon});
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(looks_, 0);
    changed_ = {{"a", "changed"}};
  }
  renewal.LookSoon();
  AwaitRenewed(1);
}

TEST_F(DependencyRenewalTest, WhatCannotBeMadeIsTriedAgainAfterARest) {
  changed_ = {{"a", "changed"}};
  mends_ = false;
  {
    const DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon});
    AwaitRenewed(3);
  }
  renewed_.clear();
  const DependencyRenewal renewal(Work(), {kSoon, kSoon, kNotHere, kNotHere});
  AwaitRenewed(1);
  AwaitLooks(5);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(renewed_.size(), 1);
}

TEST_F(DependencyRenewalTest, MakesThoseThatCouldNotBeMadeWhenTheirFunctionWasDeployed) {
  without_ = {{{"f", 2}, {"image", "waits"}}};
  mends_ = false;
  DependencyRenewal renewal(Work(), {kSoon, kSoon, kNotHere, kNotHere});
  AwaitMade(1);  // a daemon that is started tries them all
  {
    absl::MutexLock lock(&mutex_);
    without_[{"g", 1}] = {"image", "waits"};
  }
  AwaitLooks(3);
  {
    // Who has deployed it has tried that just now, and the first one rests.
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(made_.size(), 1);
    mends_ = true;
  }
  renewal.ImageMade();
  AwaitMade(3);
  AwaitLooks(3);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(made_, (std::vector<DependencyRenewal::Function>{{"f", 2}, {"f", 2}, {"g", 1}}));
}

TEST_F(DependencyRenewalTest, WhatAnAttemptMakesItselfEndsNobodysRest) {
  without_ = {{{"f", 2}, {"image", "waits"}}, {{"g", 1}, {"image", "waits"}}};
  mends_ = false;
  DependencyRenewal renewal(Work(), {kNotHere, kSoon, kNotHere, kNotHere});
  {
    absl::MutexLock lock(&mutex_);
    told_ = &renewal;
  }
  renewal.LookSoon();
  AwaitMade(2);
  AwaitLooks(5);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(made_.size(), 2);
}

TEST_F(DependencyRenewalTest, WhatOthersMakeDuringAnAttemptEndsTheRest) {
  without_ = {{{"f", 2}, {"image", "waits"}}};
  mends_ = false;
  others_make_it_ = true;
  DependencyRenewal renewal(Work(), {kNotHere, kNotHere, kNotHere, kNotHere});
  {
    absl::MutexLock lock(&mutex_);
    told_ = &renewal;
  }
  renewal.LookSoon();
  AwaitMade(3);
}

TEST_F(DependencyRenewalTest, ItLooksAgainWhenTheFirstHasRested) {
  without_ = {{{"a", 1}, {"image", "waits", 7}}, {{"b", 1}, {"image", "waits", 8}}};
  mends_ = false;
  DependencyRenewal renewal(Work(), {kNotHere, kNotHere, kSoon, kSoon});
  renewal.LookSoon();
  AwaitMade(6);
}

TEST_F(DependencyRenewalTest, WhoWasDeployedBeforeTheFirstLookHasBeenTried) {
  DependencyRenewal renewal(Work(), {kNotHere, kSoon, kNotHere, kNotHere});
  AwaitBegun();
  {
    absl::MutexLock lock(&mutex_);
    mends_ = false;
    without_ = {{{"f", 1}, {"image", "waits"}}};
  }
  renewal.LookSoon();
  AwaitLooks(3);
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(made_.empty());
}

TEST_F(DependencyRenewalTest, ThoseAreTriedAgainAfterARest) {
  DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon});
  AwaitLooks(2);
  {
    absl::MutexLock lock(&mutex_);
    mends_ = false;
    without_ = {{{"f", 2}, {"image", "waits"}}};
  }
  AwaitMade(3);
}

TEST_F(DependencyRenewalTest, OneOwnersThatFailKeepNobodyWaiting) {
  without_ = {{{"a", 1}, {"image", "waits", 7}},
              {{"b", 1}, {"image", "waits", 7}},
              {{"c", 1}, {"image", "waits", 8}}};
  mends_ = false;
  const DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon, 1e9});
  AwaitMade(2);
  AwaitLooks(5);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(made_, (std::vector<DependencyRenewal::Function>{{"a", 1}, {"c", 1}}));
}

TEST_F(DependencyRenewalTest, EndsInTheMiddle) {
  changed_ = {{"a", "changed"}, {"b", "changed"}};
  hangs_ = true;
  mends_ = false;
  {
    const DependencyRenewal renewal(Work(), {kSoon, kSoon, kSoon, kSoon});
    AwaitRenewed(1);
  }
  EXPECT_EQ(renewed_, std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace rekindle::daemon
