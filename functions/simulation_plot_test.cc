#include "functions/simulation_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++count;
  return count;
}

SimulationResult Result(size_t samples) {
  SimulationResult result;
  for (const char* name : {"fixed", "rekindle"}) {
    PolicyResult policy;
    policy.policy = name;
    for (size_t i = 0; i < samples; ++i) policy.samples.push_back({i << 30, 0, i});
    result.policies.push_back(policy);
  }
  return result;
}

TEST(SimulationPlotTest, HasALineForEachPolicyInEachPanel) {
  std::string svg = PlotSvg(Result(144), SimulationOptions());
  EXPECT_EQ(Count(svg, "<polyline"), 6u);
  EXPECT_THAT(svg, HasSubstr("rekindle</text>"));
  EXPECT_THAT(svg, HasSubstr(">24 h</text>"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(Count(svg, "nan"), 0u);
  EXPECT_EQ(Count(svg, "http"), 1u);  // the name space: nothing is fetched
}

TEST(SimulationPlotTest, NothingIsDrawnOutsideAndNothingMayBeThere) {
  EXPECT_EQ(Count(PlotSvg(SimulationResult(), SimulationOptions()), "nan"), 0u);
  EXPECT_EQ(Count(PlotSvg(Result(0), SimulationOptions()), "nan"), 0u);
  EXPECT_EQ(Count(PlotSvg(Result(14 * 144), SimulationOptions()), "-nan"), 0u);
}

}  // namespace
}  // namespace rekindle::functions
