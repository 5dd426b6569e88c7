#include "gpu_state/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rekindle::gpu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr uint64_t kGiB = uint64_t{1} << 30;

GpuDevice H200(const char* uuid, uint64_t free = 140 * kGiB) {
  return {uuid, "H200", 140 * kGiB, free, false};
}
GpuDevice A100(const char* uuid, uint64_t free = 80 * kGiB) { return {uuid, "A100", 80 * kGiB, free, false}; }

TEST(PlanDevices, SameGpusNeedNoPairs) {
  auto plan =
      PlanDevices({H200("a"), H200("b")}, {{1, "a", 10 * kGiB}}, {{H200("b"), H200("a"), H200("c")}, {}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(*plan, IsEmpty());
}

TEST(PlanDevices, MissingGpusAreReplacedByTheSameModel) {
  auto plan = PlanDevices({H200("a"), H200("b")}, {{1, "a", 10 * kGiB}, {1, "b", 100 * kGiB}},
                          {{A100("x"), H200("c", 20 * kGiB), H200("d", 120 * kGiB)}, {}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(*plan, ElementsAre(Pair("a", "c"), Pair("b", "d")));
}

TEST(PlanDevices, RefusesFewerOfTheModel) {
  auto plan = PlanDevices({H200("a"), H200("b")}, {}, {{H200("c"), A100("x")}, {}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("not as many of the same model"));
}

TEST(PlanDevices, RefusesAGpuThatIsTooFull) {
  auto plan =
      PlanDevices({H200("a")}, {{1, "a", 30 * kGiB}}, {{H200("a", 20 * kGiB)}, {{77, "a", 120 * kGiB}}}, {});
  EXPECT_TRUE(absl::IsResourceExhausted(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("77"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("30.0 GiB"));
}

TEST(PlanDevices, TakesTheWantedOnes) {
  auto plan = PlanDevices({H200("a"), H200("b")}, {{1, "a", kGiB}}, {{H200("a"), H200("b"), H200("c")}, {}},
                          {{"a", "c"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The driver wants all of them named.
  EXPECT_THAT(*plan, ElementsAre(Pair("a", "c"), Pair("b", "b")));
}

TEST(PlanDevices, TwoMaySwap) {
  auto plan = PlanDevices({H200("a"), H200("b")}, {}, {{H200("a"), H200("b")}, {}}, {{"a", "b"}, {"b", "a"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(*plan, ElementsAre(Pair("a", "b"), Pair("b", "a")));
}

TEST(PlanDevices, RefusesWantedOnesThatCannotBe) {
  auto code = [](const DevicePairs& wanted) {
    return PlanDevices({H200("a"), H200("b")}, {}, {{H200("a"), H200("b"), H200("c"), A100("x")}, {}}, wanted)
        .status()
        .code();
  };
  EXPECT_EQ(code({{"c", "a"}}), absl::StatusCode::kInvalidArgument) << "it was not on c";
  EXPECT_EQ(code({{"a", "b"}}), absl::StatusCode::kInvalidArgument) << "b is taken by b";
  EXPECT_EQ(code({{"a", "x"}}), absl::StatusCode::kFailedPrecondition) << "another model";
  EXPECT_EQ(code({{"a", "y"}}), absl::StatusCode::kFailedPrecondition) << "not there";
}

TEST(PlanDevices, DoesNotTakeAGpuInInstances) {
  GpuDevice split = H200("c");
  split.mig = true;
  EXPECT_FALSE(PlanDevices({H200("a")}, {}, {{split}, {}}, {}).ok());
}

GpuDevice Lost(const char* uuid) {
  GpuDevice device{uuid, "H200", 0, 0, false};
  device.memory_known = device.uses_known = false;
  device.lost = true;
  device.trouble = "GPU is lost (15)";
  return device;
}

TEST(PlanDevices, ALostGpuIsAsGoodAsNotThere) {
  const std::vector<GpuUse> uses = {{1, "a", kGiB}};
  auto plan = PlanDevices({H200("a")}, uses, {{Lost("a"), Lost("b"), H200("c")}, {}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(*plan, ElementsAre(Pair("a", "c")));
  for (const DevicePairs& wanted : {DevicePairs{{"a", "b"}}, DevicePairs{{"a", "a"}}}) {
    auto onto_lost = PlanDevices({H200("a")}, uses, {{H200("a"), Lost("b")}, {}}, wanted);
    EXPECT_EQ(onto_lost.ok(), wanted[0].second == "a") << onto_lost.status();
  }
  auto none = PlanDevices({H200("a")}, uses, {{Lost("a"), A100("x")}, {}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("GPU is lost (15)"));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("--gpu-reset"));
}

TEST(CheckRoom, ALostGpuIsNamedWithWhatHelps) {
  const absl::Status lost = CheckRoom({{"a", 1}}, {{Lost("a"), H200("b")}, {}});
  EXPECT_TRUE(absl::IsFailedPrecondition(lost));
  for (const char* part : {"GPU a", "GPU is lost (15)", "nvidia-smi --gpu-reset -i a", "--gpu-map a=OTHER"})
    EXPECT_THAT(std::string(lost.message()), HasSubstr(part));
  EXPECT_TRUE(CheckRoom({{"b", 1}}, {{Lost("a"), H200("b")}, {}}).ok());
}

TEST(CheckRoom, WhereMemoryIsNotToldTheDriverHasTheLastWord) {
  GpuDevice untold = Lost("a");
  untold.lost = false;
  EXPECT_TRUE(CheckRoom({{"a", 100 * kGiB}}, {{untold}, {}}).ok());
}

TEST(CheckRoom, AGpuThatIsNotThereMayBeOneWithoutAName) {
  const absl::Status away = CheckRoom({{"a", 1}}, {{H200("b")}, {}, {"GPU number 0: GPU is lost (15)"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(away));
  for (const char* part : {"no GPU a", "GPU number 0", "--gpu-map a=OTHER"})
    EXPECT_THAT(std::string(away.message()), HasSubstr(part));
}

TEST(FindLost, TellsOfThoseThatDoNotAnswerAlone) {
  GpuDevice untold = H200("b");
  untold.memory_known = false;
  EXPECT_FALSE(FindLost({{H200("a"), untold}, {}}));
  EXPECT_EQ(HintAtLost({{H200("a"), untold}, {}}), "");
  const auto lost = FindLost({{H200("a"), Lost("c")}, {}, {"GPU number 3: Unknown Error (999)"}});
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->what, testing::AllOf(HasSubstr("c: GPU is lost"), HasSubstr("number 3")));
  EXPECT_THAT(lost->cure, HasSubstr("-i c"));
}

TEST(PlanDevices, NothingOnAnyGpuNeedsNone) {
  auto plan = PlanDevices({}, {}, {}, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(*plan, IsEmpty());
}

TEST(ParseDevicePairs, ReadsAListAndRefusesWhatIsNone) {
  const std::string a = "GPU-8a6c2f1e-0b1d-4c3e-9f00-0123456789ab",
                    b = "GPU-8a6c2f1e-0b1d-4c3e-9f00-0123456789ac";
  auto pairs = ParseDevicePairs(a + "=" + b + "," + b + "=" + a);
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_THAT(*pairs, ElementsAre(Pair(a, b), Pair(b, a)));
  EXPECT_FALSE(ParseDevicePairs("").ok());
  EXPECT_FALSE(ParseDevicePairs(a).ok());
  EXPECT_FALSE(ParseDevicePairs(a + "=" + b + "," + a + "=" + b).ok());
  EXPECT_FALSE(ParseDevicePairs("0=1").ok());
}

TEST(WithOtherDevicesTest, EachGpuIsNamedOnce) {
  const std::vector<GpuDevice> present = {H200("a"), H200("b"), H200("c"), A100("x")};
  EXPECT_EQ(WithOtherDevices({{"a", "b"}}, present),
            (DevicePairs{{"a", "b"}, {"c", "c"}, {"x", "x"}, {"b", "a"}}));
  EXPECT_EQ(WithOtherDevices({{"a", "b"}, {"b", "a"}}, present),
            (DevicePairs{{"a", "b"}, {"b", "a"}, {"c", "c"}, {"x", "x"}}));
  // From another machine: nothing of this one's can take its place.
  EXPECT_EQ(WithOtherDevices({{"away", "b"}}, present), DevicePairs());
  EXPECT_EQ(WithOtherDevices({{"a", "b"}, {"b", "a"}}, {H200("a"), H200("b")}), DevicePairs());
}

}  // namespace
}  // namespace rekindle::gpu
