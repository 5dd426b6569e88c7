#include "functions/keep_alive_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "functions/trace_random.h"
#include "functions/units_for_tests.h"

namespace rekindle::functions {

void PrintTo(const Action& action, std::ostream* out) {
  *out << (action.verb == Action::Verb::kMake ? "make " : "drop ") << static_cast<int>(action.thing.kind)
       << " of " << action.thing.owner;
}

namespace {

using ::testing::Contains;
using ::testing::Not;

Action Make(ThingKind kind, uint32_t owner) { return {Action::Verb::kMake, {kind, owner}}; }
Action Drop(ThingKind kind, uint32_t owner) { return {Action::Verb::kDrop, {kind, owner}}; }

DependencyProfile Libraries() { return {100 * kMb, 100 * kMb, 100 * kMb, 10, 80}; }

FunctionProfile Handler(DependencyId dependency) {
  FunctionProfile profile;
  profile.dependency = dependency;
  profile.instance_bytes = profile.template_bytes = 50 * kMb;
  profile.ram_bytes = profile.disk_bytes = 10 * kMb;
  profile.warm_ms = 1;
  profile.template_ms = 20;
  profile.image_ms = 80;
  profile.image_read_ms = 15;
  profile.dependency_template_ms = 40;
  profile.dependency_image_ms = 95;
  profile.cold_ms = 1000;
  return profile;
}

KeepAliveOptions Megabytes(uint64_t memory) {
  KeepAliveOptions options;
  options.memory_bytes = memory * kMb;
  return options;
}

// A policy with what it said last.
struct World {
  explicit World(const KeepAliveOptions& options) : policy(options) {}
  DependencyId Dependency(const DependencyProfile& profile = Libraries()) {
    return policy.AddDependency(profile, now, &Fresh());
  }
  FunctionId Function(const FunctionProfile& profile) { return policy.AddFunction(profile, now, &Fresh()); }
  StartDecision Arrive(FunctionId function) { return policy.Arrived(function, now, &Fresh()); }
  void Idle(FunctionId function) { policy.BecameIdle(function, now, &Fresh()); }
  StartLevel Call(FunctionId function, Micros takes = kSecond) {
    StartLevel level = Arrive(function).level;
    now += takes;
    Idle(function);
    return level;
  }
  void Wait(Micros time) {
    now += time;
    policy.Tick(now, &Fresh());
  }
  std::vector<Action>& Fresh() {
    actions.clear();
    return actions;
  }
  KeepAlivePolicy policy;
  Micros now = 0;
  std::vector<Action> actions;
};

TEST(KeepAlivePolicyTest, FirstStartIsFromTheDependencyImageTheNextOneWarm) {
  World world(Megabytes(1000));
  FunctionId function = world.Function(Handler(world.Dependency()));
  StartDecision decision = world.Arrive(function);
  EXPECT_EQ(decision.level, StartLevel::kDependencyDisk);
  EXPECT_DOUBLE_EQ(decision.expected_ms, 105);
  EXPECT_FALSE(decision.over_budget);
  EXPECT_THAT(world.actions, Contains(Make(ThingKind::kDiskImage, function)));
  world.now += kSecond;
  world.Idle(function);
  world.now += kSecond;
  EXPECT_EQ(world.Arrive(function).level, StartLevel::kInstance);
}

TEST(KeepAlivePolicyTest, WithoutADependencyImageTheStartIsCold) {
  KeepAliveOptions options = Megabytes(1000);
  options.disk_bytes = 50 * kMb;
  World world(options);
  FunctionId function = world.Function(Handler(world.Dependency()));
  EXPECT_EQ(world.Arrive(function).level, StartLevel::kCold);
}

TEST(KeepAlivePolicyTest, WhatIsSharedCountsOnce) {
  World world(Megabytes(10'000));
  DependencyId libraries = world.Dependency();
  std::vector<FunctionId> functions;
  for (int i = 0; i < 10; ++i) functions.push_back(world.Function(Handler(libraries)));
  for (FunctionId function : functions) world.Arrive(function);
  ASSERT_TRUE(world.policy.Keeps({ThingKind::kDependencyTemplate, libraries}));
  uint64_t shared = 0, own = 10 * 50 * kMb;
  for (ThingKind kind : {ThingKind::kDependencyTemplate, ThingKind::kDependencyRam}) {
    if (world.policy.Keeps({kind, libraries})) shared += 100 * kMb;
  }
  for (FunctionId function : functions) {
    if (world.policy.Keeps({ThingKind::kTemplate, function})) own += 50 * kMb;
    if (world.policy.Keeps({ThingKind::kRamImage, function})) own += 10 * kMb;
  }
  EXPECT_EQ(world.policy.usage().memory_bytes, shared + own);
  EXPECT_EQ(world.policy.usage().busy_bytes, 500 * kMb);
}

TEST(KeepAlivePolicyTest, FunctionsThatShareMakeTheTemplateWorthItsMemory) {
  // Room for the template of one dependency image, beside the instance that runs.
  World world(Megabytes(160));
  DependencyId shared = world.Dependency(), lone = world.Dependency();
  std::vector<FunctionId> functions;
  for (int i = 0; i < 5; ++i) functions.push_back(world.Function(Handler(shared)));
  FunctionId single = world.Function(Handler(lone));
  // Each function comes as often as any other, always to an instance that is gone meanwhile.
  for (int round = 0; round < 20; ++round) {
    for (FunctionId function : functions) {
      world.Arrive(function);
      world.policy.Ended(function);
      world.Wait(kMinute);
    }
    world.Arrive(single);
    world.policy.Ended(single);
    world.Wait(kMinute);
  }
  EXPECT_TRUE(world.policy.Keeps({ThingKind::kDependencyTemplate, shared}));
  EXPECT_FALSE(world.policy.Keeps({ThingKind::kDependencyTemplate, lone}));
}

TEST(KeepAlivePolicyTest, ThePopularStaysTheRareGoes) {
  World world(Megabytes(220));
  DependencyId libraries = world.Dependency();
  FunctionId popular = world.Function(Handler(libraries)), rare = world.Function(Handler(libraries));
  FunctionId other = world.Function(Handler(libraries));
  for (int i = 0; i < 30; ++i) {
    if (i % 10 == 0) world.Call(rare);
    world.Call(popular);
    world.Wait(kMinute);
  }
  world.Call(rare);  // used last
  world.Call(other);
  world.Call(other);
  for (int i = 0; i < 3; ++i) world.Arrive(other);
  EXPECT_EQ(world.policy.Idle(rare), 0u);
  EXPECT_EQ(world.policy.Idle(popular), 1u);
}

TEST(KeepAlivePolicyTest, OfTwoAsPopularTheLargerGoesFirst) {
  World world(Megabytes(400));
  DependencyId libraries = world.Dependency();
  FunctionProfile large = Handler(libraries);
  large.instance_bytes = 150 * kMb;
  FunctionId big = world.Function(large), small = world.Function(Handler(libraries));
  for (int i = 0; i < 10; ++i) {
    world.Call(small);
    world.Call(big);
    world.Wait(kMinute);
  }
  while (world.policy.Idle(big) > 0 && world.policy.Idle(small) > 0) {
    world.Arrive(world.Function(Handler(libraries)));
  }
  EXPECT_EQ(world.policy.Idle(big), 0u);
  EXPECT_EQ(world.policy.Idle(small), 1u);
}

TEST(KeepAlivePolicyTest, WhatPopularityWasFades) {
  KeepAliveOptions options = Megabytes(110);
  options.fade_seconds = 3600;
  World world(options);
  DependencyProfile libraries = Libraries();
  libraries.read_ms = 0;
  FunctionProfile profile = Handler(world.Dependency(libraries));
  profile.image_read_ms = 0;  // nothing to gain by pages in RAM
  FunctionId once = world.Function(profile), today = world.Function(profile);
  for (int i = 0; i < 50; ++i) world.Call(once);
  world.Wait(12 * kHour);
  for (int i = 0; i < 3; ++i) world.Call(today);
  world.Call(once);
  world.Arrive(world.Function(profile));
  EXPECT_EQ(world.policy.Idle(once), 0u);
  EXPECT_EQ(world.policy.Idle(today), 1u);
}

TEST(KeepAlivePolicyTest, AnInstanceIsMadeBeforeATimerFires) {
  World world(Megabytes(130));
  DependencyId libraries = world.Dependency();
  FunctionId timer = world.Function(Handler(libraries)), filler = world.Function(Handler(libraries));
  for (int i = 0; i < 8; ++i) {
    world.Call(timer);
    // Meanwhile others want the memory.
    world.Arrive(filler);
    world.Arrive(filler);
    world.policy.Ended(filler);
    world.policy.Ended(filler);
    EXPECT_EQ(world.policy.Idle(timer), 0u);
    const Micros due = world.now + 30 * kMinute - kSecond;
    while (world.policy.NextTick() < due) {
      world.now = world.policy.NextTick();
      world.policy.Tick(world.now, &world.Fresh());
    }
    world.now = due;
    if (i >= 4) {
      EXPECT_EQ(world.policy.Idle(timer), 1u) << "round " << i;
    }
  }
  EXPECT_EQ(world.Call(timer), StartLevel::kInstance);
}

TEST(KeepAlivePolicyTest, ProvisionedInstancesAreThereAndStay) {
  World world(Megabytes(300));
  DependencyId libraries = world.Dependency();
  FunctionProfile profile = Handler(libraries);
  profile.provisioned = 2;
  FunctionId function = world.Function(profile);
  EXPECT_THAT(world.actions, Contains(Make(ThingKind::kInstance, function)).Times(2));
  FunctionId other = world.Function(Handler(libraries));
  for (int i = 0; i < 10; ++i) world.Arrive(other);
  EXPECT_EQ(world.policy.Idle(function), 2u);
  world.Wait(24 * kHour);
  EXPECT_EQ(world.policy.Idle(function), 2u);
  EXPECT_EQ(world.Arrive(function).level, StartLevel::kInstance);
}

TEST(KeepAlivePolicyTest, BeyondTheBudgetIsSaid) {
  World world(Megabytes(120));
  FunctionId function = world.Function(Handler(world.Dependency()));
  EXPECT_FALSE(world.Arrive(function).over_budget);
  EXPECT_FALSE(world.Arrive(function).over_budget);
  EXPECT_TRUE(world.Arrive(function).over_budget);
  EXPECT_EQ(world.policy.usage().memory_bytes, 150 * kMb);
  world.Idle(function);
  EXPECT_LE(world.policy.usage().memory_bytes, 120 * kMb);
}

TEST(KeepAlivePolicyTest, InstancesOfABurstGo) {
  World world(Megabytes(100'000));
  FunctionId function = world.Function(Handler(world.Dependency()));
  for (int i = 0; i < 40; ++i) world.Arrive(function);
  world.now += kSecond;
  for (int i = 0; i < 40; ++i) world.Idle(function);
  EXPECT_GE(world.policy.Idle(function), 30u);
  for (int i = 0; i < 200; ++i) {
    world.Call(function);
    world.Wait(kMinute);
  }
  EXPECT_LE(world.policy.Idle(function), 2u);
}

TEST(KeepAlivePolicyTest, WhatNobodyNeedsGoesAtTheLimit) {
  World world(Megabytes(100'000));
  FunctionId function = world.Function(Handler(world.Dependency()));
  world.Call(function);
  world.Wait(3 * kHour);
  EXPECT_EQ(world.policy.Idle(function), 1u);
  world.Wait(2 * kHour);
  EXPECT_EQ(world.policy.Idle(function), 0u);
  EXPECT_THAT(world.actions, Contains(Drop(ThingKind::kInstance, function)));
}

TEST(KeepAlivePolicyTest, WithTheImageOnDiskItsPagesGo) {
  KeepAliveOptions options = Megabytes(10'000);
  options.disk_bytes = 115 * kMb;  // the dependency image and one function's own
  World world(options);
  DependencyId libraries = world.Dependency();
  // Its image is faster than its dependency's template, so that it is worth keeping.
  FunctionProfile profile = Handler(libraries);
  profile.image_ms = 5;
  FunctionId first = world.Function(profile), second = world.Function(profile);
  world.Arrive(first);
  world.Arrive(first);
  ASSERT_TRUE(world.policy.Keeps({ThingKind::kRamImage, first}));
  for (int i = 0; i < 60; ++i) {
    world.Arrive(second);
    world.Wait(kMinute);
  }
  EXPECT_TRUE(world.policy.Keeps({ThingKind::kDiskImage, second}));
  EXPECT_FALSE(world.policy.Keeps({ThingKind::kDiskImage, first}));
  EXPECT_FALSE(world.policy.Keeps({ThingKind::kRamImage, first}));
}

TEST(KeepAlivePolicyTest, WhatIsLostIsNotStartedFrom) {
  World world(Megabytes(1000));
  DependencyId libraries = world.Dependency();
  FunctionId function = world.Function(Handler(libraries));
  world.Call(function);
  world.policy.Lost({ThingKind::kInstance, function});
  EXPECT_EQ(world.policy.Idle(function), 0u);
  EXPECT_NE(world.Arrive(function).level, StartLevel::kInstance);
  for (int i = 0; i < 5; ++i) world.Arrive(function);
  ASSERT_TRUE(world.policy.Keeps({ThingKind::kTemplate, function}));
  uint64_t before = world.policy.usage().memory_bytes;
  world.policy.Lost({ThingKind::kTemplate, function});
  EXPECT_EQ(world.policy.usage().memory_bytes, before - 50 * kMb);
  world.policy.Lost({ThingKind::kTemplate, function});
  EXPECT_EQ(world.policy.usage().memory_bytes, before - 50 * kMb);
}

TEST(KeepAlivePolicyTest, WhatIsLostForNowIsWantedAgainLater) {
  World world(Megabytes(1000));
  FunctionId function = world.Function(Handler(world.Dependency()));
  const Thing image{ThingKind::kDiskImage, function};
  world.Arrive(function);
  world.policy.Lost(image, world.now + 10 * kSecond);
  EXPECT_FALSE(world.policy.Keeps(image));
  world.Wait(10 * kSecond - 1);
  EXPECT_NE(world.Arrive(function).level, StartLevel::kInstance);
  EXPECT_FALSE(world.policy.Keeps(image));
  EXPECT_THAT(world.actions, Not(Contains(Make(ThingKind::kDiskImage, function))));
  EXPECT_THAT(world.actions, Not(Contains(Make(ThingKind::kTemplate, function))));
  world.Wait(1);
  EXPECT_NE(world.Arrive(function).level, StartLevel::kInstance);
  EXPECT_THAT(world.actions, Contains(Make(ThingKind::kDiskImage, function)));
}

TEST(KeepAlivePolicyTest, ARemovedFunctionLeavesNothing) {
  World world(Megabytes(10'000));
  DependencyId libraries = world.Dependency();
  FunctionId function = world.Function(Handler(libraries)), neighbour = world.Function(Handler(libraries));
  for (int i = 0; i < 6; ++i) world.Arrive(function);
  world.Call(neighbour);
  world.Idle(function);
  world.policy.RemoveFunction(function, &world.Fresh());
  EXPECT_THAT(world.actions, Contains(Drop(ThingKind::kInstance, function)));
  EXPECT_THAT(world.actions, Contains(Drop(ThingKind::kDiskImage, function)));
  EXPECT_THAT(world.actions, Not(Contains(Drop(ThingKind::kInstance, neighbour))));
  world.Idle(function);  // one that was still busy
  EXPECT_THAT(world.actions, Contains(Drop(ThingKind::kInstance, function)));
  for (int i = 0; i < 4; ++i) world.policy.Ended(function);
  EXPECT_EQ(world.policy.usage().busy_bytes, 0u);
  EXPECT_EQ(world.policy.Idle(neighbour), 1u);
}

TEST(KeepAlivePolicyTest, AFunctionThatTurnsOutLargerStillFits) {
  World world(Megabytes(300));
  FunctionProfile profile = Handler(world.Dependency());
  FunctionId function = world.Function(profile);
  for (int i = 0; i < 4; ++i) world.Arrive(function);
  for (int i = 0; i < 4; ++i) world.Idle(function);
  profile.instance_bytes = 140 * kMb;
  world.policy.UpdateFunction(function, profile, world.now, &world.Fresh());
  EXPECT_LE(world.policy.usage().memory_bytes, 300 * kMb);
  EXPECT_EQ(world.policy.usage().busy_bytes, 0u);
  EXPECT_GE(world.policy.Idle(function), 1u);
}

// Random events on a small machine. What the policy says is carried out beside it and checked at each step.
class RandomEvents {
 public:
  RandomEvents(uint64_t seed, uint64_t memory_mb, uint64_t disk_mb)
      : random_(seed), options_(Megabytes(memory_mb)) {
    options_.disk_bytes = disk_mb * kMb;
    policy_ = std::make_unique<KeepAlivePolicy>(options_);
    for (int i = 0; i < 6; ++i) {
      DependencyProfile profile = Libraries();
      profile.template_bytes = profile.ram_bytes = profile.disk_bytes = Number(20, 150) * kMb;
      dependencies_.push_back(profile);
      policy_->AddDependency(profile, 0, &actions_);
    }
    for (int i = 0; i < 60; ++i) {
      FunctionProfile profile = Handler(static_cast<DependencyId>(Number(0, 5)));
      profile.instance_bytes = Number(10, 90) * kMb;
      profile.template_bytes = Number(10, 90) * kMb;
      profile.ram_bytes = profile.disk_bytes = Number(1, 30) * kMb;
      profile.cold_ms = static_cast<double>(Number(50, 3000));
      functions_.push_back(profile);
      policy_->AddFunction(profile, 0, &actions_);
    }
    Apply();
  }

  void Step() {
    // A few functions come often, most rarely.
    auto function = static_cast<FunctionId>(60 * std::pow(random_.Uniform(), 3));
    now_ += static_cast<Micros>(random_.Exponential() * 20 * kSecond);
    policy_->Tick(now_, &actions_);
    Apply();
    const double what = random_.Uniform();
    if (what < 0.5 || busy_.empty()) {
      const bool idle = policy_->Idle(function) > 0;
      StartDecision decision = policy_->Arrived(function, now_, &actions_);
      EXPECT_EQ(decision.level == StartLevel::kInstance, idle);
      if (idle) --there_[{static_cast<int>(ThingKind::kInstance), function}];
      busy_.push_back(function);
      Apply();
      EXPECT_TRUE(!decision.over_budget || policy_->usage().memory_bytes == policy_->usage().busy_bytes);
      levels_.push_back(decision.level);
    } else {
      auto at = static_cast<size_t>(random_.Uniform() * static_cast<double>(busy_.size()));
      std::swap(busy_[at], busy_.back());
      FunctionId done = busy_.back();
      busy_.pop_back();
      if (what < 0.95) {
        ++there_[{static_cast<int>(ThingKind::kInstance), done}];
        policy_->BecameIdle(done, now_, &actions_);
      } else {
        policy_->Ended(done);
      }
      Apply();
    }
    Check();
  }

  const std::vector<Action>& said() const { return said_; }
  const std::vector<StartLevel>& levels() const { return levels_; }

 private:
  uint64_t Number(uint64_t from, uint64_t to) {
    return from + static_cast<uint64_t>(random_.Uniform() * static_cast<double>(to - from + 1));
  }

  void Apply() {
    for (const Action& action : actions_) {
      int& count = there_[{static_cast<int>(action.thing.kind), action.thing.owner}];
      if (action.verb == Action::Verb::kMake) {
        ++count;
        if (action.thing.kind != ThingKind::kInstance) {
          EXPECT_EQ(count, 1) << "made twice";
        }
      } else {
        EXPECT_GT(count, 0) << "dropped what was not there";
        --count;
      }
      said_.push_back(action);
    }
    actions_.clear();
  }

  void Check() {
    uint64_t memory = 0, disk = 0, busy = 0;
    for (const auto& [name, count] : there_) {
      const auto& [kind, owner] = name;
      const uint64_t n = static_cast<uint64_t>(count);
      EXPECT_EQ(policy_->Keeps({static_cast<ThingKind>(kind), owner}), count > 0);
      switch (static_cast<ThingKind>(kind)) {
        case ThingKind::kInstance:
          EXPECT_EQ(policy_->Idle(owner), n);
          memory += n * functions_[owner].instance_bytes;
          break;
        case ThingKind::kTemplate:
          memory += n * functions_[owner].template_bytes;
          break;
        case ThingKind::kRamImage:
          memory += n * functions_[owner].ram_bytes;
          break;
        case ThingKind::kDiskImage:
          disk += n * functions_[owner].disk_bytes;
          if (n > 0) {
            EXPECT_TRUE(policy_->Keeps({ThingKind::kDependencyDisk, functions_[owner].dependency}));
          }
          break;
        case ThingKind::kDependencyTemplate:
          memory += n * dependencies_[owner].template_bytes;
          break;
        case ThingKind::kDependencyRam:
          memory += n * dependencies_[owner].ram_bytes;
          break;
        case ThingKind::kDependencyDisk:
          disk += n * dependencies_[owner].disk_bytes;
          break;
      }
    }
    for (FunctionId function : busy_) busy += functions_[function].instance_bytes;
    EXPECT_EQ(policy_->usage().memory_bytes, memory + busy);
    EXPECT_EQ(policy_->usage().busy_bytes, busy);
    EXPECT_EQ(policy_->usage().disk_bytes, disk);
    EXPECT_LE(disk, options_.disk_bytes);
    // Beyond the budget only with what runs, of which nothing can go.
    if (memory > 0) {
      EXPECT_LE(memory + busy, options_.memory_bytes);
    }
  }

  Random random_;
  KeepAliveOptions options_;
  std::unique_ptr<KeepAlivePolicy> policy_;
  std::vector<DependencyProfile> dependencies_;
  std::vector<FunctionProfile> functions_;
  std::vector<Action> actions_, said_;
  std::vector<StartLevel> levels_;
  std::map<std::pair<int, uint32_t>, int> there_;
  std::vector<FunctionId> busy_;
  Micros now_ = 0;
};

class KeepAliveRandomTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(KeepAliveRandomTest, BudgetsHoldAndNothingIsDroppedThatIsNotThere) {
  const uint64_t seed = GetParam();
  RandomEvents events(seed, 200 + 400 * (seed % 5), 300 + 300 * (seed % 3));
  for (int i = 0; i < 3000 && !::testing::Test::HasFailure(); ++i) events.Step();
}

TEST_P(KeepAliveRandomTest, TheSameEventsHaveTheSameAnswers) {
  RandomEvents one(GetParam(), 800, 600), two(GetParam(), 800, 600);
  for (int i = 0; i < 1500; ++i) {
    one.Step();
    two.Step();
  }
  EXPECT_EQ(one.said(), two.said());
  EXPECT_EQ(one.levels(), two.levels());
}

TEST_P(KeepAliveRandomTest, MoreMemoryMeansMoreWarmStarts) {
  auto warm = [](RandomEvents events) {
    for (int i = 0; i < 4000; ++i) events.Step();
    return std::count(events.levels().begin(), events.levels().end(), StartLevel::kInstance);
  };
  EXPECT_LT(warm(RandomEvents(GetParam(), 400, 2000)), warm(RandomEvents(GetParam(), 3000, 2000)));
}

INSTANTIATE_TEST_SUITE_P(Seeds, KeepAliveRandomTest, ::testing::Range<uint64_t>(1, 16));

}  // namespace
}  // namespace rekindle::functions
