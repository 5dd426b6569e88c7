#include "gpu_state/hidden_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rekindle::gpu {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

GpuDevice Told(const char* uuid, uint64_t free) { return {uuid, "H200", 100, free, false}; }
GpuDevice WithoutAnswer(const char* uuid) {
  GpuDevice device{uuid, "H200", 0, 0, false};
  device.memory_known = device.uses_known = false;
  device.lost = true;
  return device;
}
// Its memory is told, and not its processes.
GpuDevice Silent(const char* uuid, uint64_t free) {
  GpuDevice device = Told(uuid, free);
  device.uses_known = false;
  return device;
}

void ExpectUse(const std::vector<GpuUse>& uses, pid_t pid, const std::string& uuid, uint64_t bytes) {
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].pid, pid);
  EXPECT_EQ(uses[0].uuid, uuid);
  EXPECT_EQ(uses[0].bytes, bytes);
}

TEST(HiddenUsesTest, WhereAllIsToldNothingIsHidden) {
  const DeviceView view = {{Told("a", 40)}, {{1, "a", 60}}};
  const HiddenUses hidden = FindHidden(view.devices, view.uses, {1, 2}, true);
  EXPECT_THAT(hidden.pids, IsEmpty());
  EXPECT_THAT(MostOfHidden(view, hidden), IsEmpty());
}

TEST(HiddenUsesTest, InAContainerWhatIsNobodysMayBeOurs) {
  const DeviceView view = {{Told("a", 40), Told("b", 100)}, {}};
  const HiddenUses hidden = FindHidden(view.devices, view.uses, {1, 2}, false);
  EXPECT_THAT(hidden.pids, ElementsAre(1, 2));
  ExpectUse(MostOfHidden(view, hidden), 1, "a", 60);
  const DeviceView after = {{Told("a", 90), Told("b", 100)}, {}};
  ExpectUse(UsesByWhatIsFree(view, after, {}, hidden), 1, "a", 50);
}

TEST(HiddenUsesTest, NothingIsSaidOfALostGpu) {
  const DeviceView view = {{Told("a", 40), WithoutAnswer("b")}, {{1, "a", 60}}};
  EXPECT_THAT(FindHidden(view.devices, view.uses, {1, 2}, true).pids, IsEmpty());
  const HiddenUses hidden = FindHidden(view.devices, view.uses, {2}, false);
  EXPECT_THAT(hidden.pids, ElementsAre(2));
  EXPECT_THAT(MostOfHidden(view, hidden), IsEmpty());
  // It is there again, or goes, in between.
  const DeviceView well = {{Told("a", 40), Told("b", 100)}, {{1, "a", 60}}};
  EXPECT_THAT(UsesByWhatIsFree(view, well, {}, hidden), IsEmpty());
  EXPECT_THAT(UsesByWhatIsFree(well, view, {}, hidden), IsEmpty());
}

TEST(HiddenUsesTest, OnlyOnAGpuThatNamesNobody) {
  // What is used of a is others' business.
  const DeviceView view = {{Told("a", 40), Silent("b", 30)}, {{1, "c", 7}}};
  const HiddenUses hidden = FindHidden(view.devices, view.uses, {1, 2}, true);
  EXPECT_THAT(hidden.pids, ElementsAre(2));
  ExpectUse(MostOfHidden(view, hidden), 2, "b", 70);
  const DeviceView after = {{Told("a", 100), Silent("b", 80)}, {}};
  ExpectUse(UsesByWhatIsFree(view, after, {}, hidden), 2, "b", 50);
}

}  // namespace
}  // namespace rekindle::gpu
