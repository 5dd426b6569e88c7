#include "functions/contender.h"

#include <gtest/gtest.h>

#include "functions/units_for_tests.h"

namespace rekindle::functions {
namespace {

Curve Always(double value) { return {{{1, value}, {1000, value}}}; }

// 100 MB are read in 100 ms.
SimulationModel SimpleModel() {
  SimulationModel model;
  model.cold_ms = Always(1000);
  model.criu_restore_ms = Always(90);
  model.criu_lazy_ms = Always(110);
  model.clone_ms = Always(60);
  model.template_ms = Always(15);
  model.working_set_mb = Always(10);
  model.code_load_ms = 20;
  model.disk_mb_per_second = 1000;
  model.disk_latency_ms = 0;
  model.warm_ms = 1;
  return model;
}

// Two functions of 100 MB on one dependency image of 80 MB.
std::unique_ptr<Contender> TwoFunctions(absl::string_view name, uint64_t memory_mb,
                                        uint64_t disk_mb = 1'000'000) {
  std::unique_ptr<Contender> contender =
      MakeContender(name, SimpleModel(), {memory_mb * kMb, disk_mb * kMb, 100});
  contender->AddDependency(80, 0);
  contender->AddFunction({0, 100, 80}, 0);
  contender->AddFunction({0, 100, 80}, 0);
  return contender;
}

void ExpectStart(Contender* contender, FunctionId function, Micros now, StartLevel level, double ms) {
  contender->Advance(now);
  StartDecision decision = contender->Arrived(function, now);
  EXPECT_EQ(static_cast<int>(decision.level), static_cast<int>(level)) << "at " << now;
  EXPECT_DOUBLE_EQ(decision.expected_ms, ms) << "at " << now;
}

TEST(ContenderTest, ThereAreFiveAndNoOthers) {
  for (const std::string& name : ContenderNames())
    EXPECT_NE(MakeContender(name, SimpleModel(), {}), nullptr) << name;
  EXPECT_EQ(ContenderNames().size(), 5u);
  EXPECT_EQ(MakeContender("oracle", SimpleModel(), {}), nullptr);
}

TEST(ContenderTest, WithoutACacheEveryStartIsCold) {
  auto none = TwoFunctions("none", 1000);
  ExpectStart(none.get(), 0, 0, StartLevel::kCold, 1020);
  EXPECT_EQ(none->usage().memory_bytes, 100 * kMb);
  none->BecameIdle(0, kSecond);
  EXPECT_EQ(none->usage().memory_bytes, 0u);
  ExpectStart(none.get(), 0, 2 * kSecond, StartLevel::kCold, 1020);
}

TEST(ContenderTest, FixedKeepAliveIsTenMinutes) {
  auto fixed = TwoFunctions("fixed", 1000);
  ExpectStart(fixed.get(), 0, 0, StartLevel::kCold, 1020);
  fixed->BecameIdle(0, kSecond);
  ExpectStart(fixed.get(), 0, 10 * kMinute, StartLevel::kInstance, 1);
  fixed->BecameIdle(0, 10 * kMinute);
  EXPECT_EQ(fixed->usage().memory_bytes, 100 * kMb);
  fixed->Advance(20 * kMinute);
  EXPECT_EQ(fixed->usage().memory_bytes, 0u);
  ExpectStart(fixed.get(), 0, 20 * kMinute, StartLevel::kCold, 1020);
}

TEST(ContenderTest, FixedKeepAliveGivesUpTheOldestForMemory) {
  auto fixed = TwoFunctions("fixed", 250);
  fixed->Arrived(0, 0);
  fixed->BecameIdle(0, kSecond);
  fixed->Arrived(1, kSecond);
  fixed->BecameIdle(1, 2 * kSecond);
  fixed->Arrived(1, 3 * kSecond);                                     // the idle one
  ExpectStart(fixed.get(), 1, 3 * kSecond, StartLevel::kCold, 1020);  // a second one, for which 0's goes
  ExpectStart(fixed.get(), 0, 4 * kSecond, StartLevel::kCold, 1020);
  EXPECT_EQ(fixed->usage().memory_bytes, 300 * kMb);
}

TEST(ContenderTest, BeyondTheBudgetIsSaid) {
  for (const char* name : {"fixed", "snapshot", "hotswap"}) {
    auto contender = TwoFunctions(name, 150);
    EXPECT_FALSE(contender->Arrived(0, 0).over_budget) << name;
    EXPECT_TRUE(contender->Arrived(0, 0).over_budget) << name;
  }
}

TEST(ContenderTest, SnapshotsComeFromDiskThenFromMemory) {
  auto snapshot = TwoFunctions("snapshot", 1000);
  EXPECT_EQ(snapshot->usage().disk_bytes, 200 * kMb);
  ExpectStart(snapshot.get(), 0, 0, StartLevel::kImageDisk, 190);
  ExpectStart(snapshot.get(), 0, 0, StartLevel::kImageRam, 90);
  ExpectStart(snapshot.get(), 1, 0, StartLevel::kImageDisk, 190);  // nothing is shared
  EXPECT_EQ(snapshot->usage().memory_bytes, (3 + 2) * 100 * kMb);
  snapshot->BecameIdle(0, kSecond);
  ExpectStart(snapshot.get(), 0, 2 * kSecond, StartLevel::kInstance, 1);
}

TEST(ContenderTest, CachedSnapshotsGoBeforeInstances) {
  auto snapshot = TwoFunctions("snapshot", 250);
  snapshot->Arrived(0, 0);
  EXPECT_EQ(snapshot->usage().memory_bytes, 200 * kMb);
  snapshot->BecameIdle(0, kSecond);
  snapshot->Arrived(1, 2 * kSecond);
  EXPECT_EQ(snapshot->usage().memory_bytes, 200 * kMb);
  ExpectStart(snapshot.get(), 0, 3 * kSecond, StartLevel::kInstance, 1);
  ExpectStart(snapshot.get(), 0, 3 * kSecond, StartLevel::kImageDisk, 190);
}

TEST(ContenderTest, WithoutRoomOnDiskASnapshotIsGone) {
  auto snapshot = TwoFunctions("snapshot", 1000, 150);
  EXPECT_EQ(snapshot->usage().disk_bytes, 100 * kMb);
  ExpectStart(snapshot.get(), 0, 0, StartLevel::kCold, 1020);
  ExpectStart(snapshot.get(), 0, 0, StartLevel::kImageRam, 90);  // captured after that, in place of the other
  ExpectStart(snapshot.get(), 1, 0, StartLevel::kCold, 1020);
}

TEST(ContenderTest, HotSwapSharesTheDependencyImage) {
  auto hotswap = TwoFunctions("hotswap", 1000);
  EXPECT_EQ(hotswap->usage().disk_bytes, 80 * kMb);
  ExpectStart(hotswap.get(), 0, 0, StartLevel::kDependencyDisk, 110 + 20 + 80);
  ExpectStart(hotswap.get(), 1, 0, StartLevel::kDependencyRam, 110 + 20);
  EXPECT_EQ(hotswap->usage().memory_bytes, (100 + 100 + 80) * kMb);
}

TEST(ContenderTest, OursIsThePolicy) {
  auto ours = TwoFunctions("rekindle", 1000);
  ExpectStart(ours.get(), 0, 0, StartLevel::kDependencyDisk, 60 + 20 + 10);
  // What the first start was for is there: the template, made in the background, or the pages.
  ours->Advance(kSecond);
  EXPECT_LE(ours->Arrived(1, kSecond).expected_ms, 80);
  ours->BecameIdle(0, kSecond);
  ExpectStart(ours.get(), 0, 2 * kSecond, StartLevel::kInstance, 1);
}

}  // namespace
}  // namespace rekindle::functions
