#include "gpu_state/await_room.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::gpu {
namespace {

constexpr uint64_t kContext = 1 << 20;

TEST(RoomForTest, WhatIsKnownGoesOntoTheGpuThatTakesTheOthersPlace) {
  // The second process's is noted with the first one.
  const std::vector<GpuUse> uses = {{1, "a", 60}, {2, "a", std::nullopt}, {2, "b", 7}};
  const RoomByDevice needed = RoomFor(uses, {{"a", "c"}}, kContext);
  ASSERT_EQ(needed.size(), 2u);
  EXPECT_EQ(needed.at("c").bytes, 60u);
  EXPECT_FALSE(needed.at("c").is_guess);
  EXPECT_EQ(needed.at("b").bytes, 7u);
}

TEST(RoomForTest, WhatIsNotKnownIsNoMoreThanHostMemory) {
  const std::vector<GpuDevice> devices = {{"a", "H200", 100, 40, false}, {"b", "H200", 100, 40, false}};
  const RoomByDevice needed = RoomFor(UnknownUses(::getpid(), devices), {}, kContext);
  ASSERT_EQ(needed.size(), 2u);
  for (const auto& [uuid, room] : needed) {
    EXPECT_TRUE(room.is_guess) << uuid;
    EXPECT_GT(room.bytes, kContext) << uuid;
  }
}

TEST(AwaitRoomTest, OnlyALostGpuRefusesItsOwn) {
  const auto folder = TemporaryDirectory::Make("/tmp", "await-room-test-");
  ASSERT_TRUE(folder.ok()) << folder.status();
  Ledger ledger(folder->path());
  GpuDevice lost{"lost-test", "H200", 0, 0, false};
  lost.memory_known = lost.uses_known = false;
  GpuDevice untold = lost;
  lost.lost = true;
  untold.uuid = "untold-test";
  RoomWait wait;
  wait.for_room = wait.for_turns = absl::InfiniteDuration();
  wait.look = [&]() -> absl::StatusOr<DeviceView> {
    return DeviceView{{{"well-test", "H200", 100, 40, false}, lost, untold}, {}};
  };
  EXPECT_TRUE(AwaitRoom(ledger, {{"well-test", {40, false}}, {"untold-test", {99, true}}}, {}, wait).ok());
  const auto refused = AwaitRoom(ledger, {{"lost-test", {1, false}}}, {}, wait);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
}

TEST(MachineTurnTest, OneHasItAndIsKnown) {
  const std::string gpu = absl::StrCat("test-", ::getpid());
  EXPECT_FALSE(HolderOfMachineTurn(gpu));
  {
    const auto turn = MachineTurn::Take(gpu);
    ASSERT_TRUE(turn.ok()) << turn.status();
    EXPECT_TRUE(absl::IsUnavailable(MachineTurn::Take(gpu).status()));
    const auto holder = HolderOfMachineTurn(gpu);
    ASSERT_TRUE(holder);
    EXPECT_EQ(holder->pid, ::getpid());
    EXPECT_EQ(holder->uid, ::geteuid());
  }
  EXPECT_TRUE(MachineTurn::Take(gpu).ok());
}

TEST(AwaitRoomTest, WhoseRoomIsKeptWaitsForNoMoveOfItsOwnProcess) {
  const auto folder = TemporaryDirectory::Make("/tmp", "await-room-test-");
  ASSERT_TRUE(folder.ok()) << folder.status();
  Ledger ledger(folder->path());
  const std::string gpu = absl::StrCat("kept-test-", ::getpid());
  RoomWait wait;
  wait.look = [&gpu]() -> absl::StatusOr<DeviceView> {
    return DeviceView{{{gpu, "H200", 100, 40, false}}, {}};
  };
  const RoomByDevice needed = {{gpu, {40, false}}};
  auto other = AwaitRoom(ledger, needed, {}, wait);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitRoom(ledger, needed, {}, wait).status()));
  wait.is_kept = true;
  const auto kept = AwaitRoom(ledger, needed, {}, wait);
  ASSERT_TRUE(kept.ok()) << kept.status();
  // The machine's turn is there as long as either has it.
  other = absl::CancelledError("");
  EXPECT_TRUE(HolderOfMachineTurn(gpu));
  wait.is_kept = false;
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitRoom(ledger, needed, {}, wait).status()));
}

TEST(AwaitRoomTest, IsGivenUp) {
  const auto folder = TemporaryDirectory::Make("/tmp", "await-room-test-");
  ASSERT_TRUE(folder.ok()) << folder.status();
  Ledger ledger(folder->path());
  int asked = 0;
  RoomWait wait;
  wait.for_room = wait.for_turns = absl::InfiniteDuration();
  wait.look = []() -> absl::StatusOr<DeviceView> {
    return DeviceView{{{"await-room-test", "H200", 100, 40, false}}, {}};
  };
  wait.cancelled = [&asked] { return ++asked > 1; };
  const auto room = AwaitRoom(ledger, {{"await-room-test", {60, false}}}, {}, wait);
  EXPECT_TRUE(absl::IsCancelled(room.status())) << room.status();
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace rekindle::gpu
