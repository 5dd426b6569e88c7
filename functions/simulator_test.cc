#include "functions/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sanitized.h"
#include "functions/simulation_report.h"
#include "functions/trace_files_for_tests.h"
#include "functions/trace_generator.h"
#include "functions/units_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;

// One dependency image for all, no spread: what a start takes can be computed by hand.
SimulationModel ExactModel() {
  SimulationModel model;
  model.spread = 0;
  model.unshared_apps = 0;
  model.images_per_class = 1;
  return model;
}

const PolicyResult& Of(const SimulationResult& result, const std::string& policy) {
  for (const PolicyResult& one : result.policies) {
    if (one.policy == policy) return one;
  }
  ADD_FAILURE() << "no " << policy;
  return result.policies.front();
}

uint64_t Starts(const SimulationResult& result, const std::string& policy, StartLevel level) {
  return Of(result, policy).starts[static_cast<size_t>(level)];
}

class SimulatorTest : public ::testing::Test {
 protected:
  SimulationResult Play(std::vector<std::string> traces, uint64_t memory_mb,
                        SimulationModel model = ExactModel()) {
    options_.traces = std::move(traces);
    options_.budgets.memory_bytes = memory_mb * kMb;
    absl::StatusOr<SimulationResult> result = Simulate(model, options_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : SimulationResult();
  }
  TraceFiles files_;
  SimulationOptions options_;
};

TEST_F(SimulatorTest, OneFunctionByHand) {
  // A second each, 4 and 25 minutes between them (less or more by a minute).
  SimulationResult result =
      Play({files_.Invocations("i.csv", {{"o,a,f,http", {{1, 1}, {5, 1}, {30, 1}}}}),
            files_.Memory("m.csv", {{"o,a", "120"}}),
            files_.Durations("d.csv", {{"o,a,f", "1000,1000,1000,1000,1000,1000,1000"}})},
           10'000);
  EXPECT_EQ(result.invocations, 3u);
  EXPECT_EQ(result.functions, 1u);
  EXPECT_EQ(Starts(result, "none", StartLevel::kCold), 3u);
  EXPECT_EQ(Of(result, "none").slow_starts, 3u);
  EXPECT_NEAR(Of(result, "none").mean_ms, 1014.7 + 20, 0.01);
  EXPECT_EQ(Of(result, "none").peak_disk_bytes, 0u);
  EXPECT_EQ(Starts(result, "fixed", StartLevel::kCold), 2u);
  EXPECT_EQ(Starts(result, "fixed", StartLevel::kInstance), 1u);
  EXPECT_EQ(Of(result, "fixed").slow_starts, 2u);
  EXPECT_NEAR(Of(result, "fixed").mean_ms, (2 * 1034.7 + 1) / 3, 0.01);
  EXPECT_EQ(Of(result, "fixed").peak_memory_bytes, 120 * kMb);
  // Read from disk once (95.7 ms + 120 MB), then in memory, where it is no slow start.
  EXPECT_EQ(Starts(result, "snapshot", StartLevel::kImageDisk), 1u);
  EXPECT_EQ(Starts(result, "snapshot", StartLevel::kImageRam), 1u);
  EXPECT_EQ(Of(result, "snapshot").slow_starts, 1u);
  EXPECT_NEAR(Of(result, "snapshot").mean_ms, (95.7 + 0.2 + 120 + 1 + 95.7) / 3, 0.01);
  EXPECT_EQ(Of(result, "snapshot").peak_disk_bytes, 120 * kMb);
  EXPECT_EQ(Starts(result, "hotswap", StartLevel::kDependencyDisk), 1u);
  EXPECT_EQ(Starts(result, "hotswap", StartLevel::kDependencyRam), 1u);
  // There is room, so the instance is kept, for longer than ten minutes.
  EXPECT_EQ(Starts(result, "rekindle", StartLevel::kDependencyDisk), 1u);
  EXPECT_EQ(Starts(result, "rekindle", StartLevel::kInstance), 2u);
}

TEST_F(SimulatorTest, AnInstanceServesOneAtATime) {
  // All busy for longer than the minute.
  SimulationResult result =
      Play({files_.Invocations("i.csv", {{"o,a,f,http", {{1, 5}}}}),
            files_.Durations("d.csv", {{"o,a,f", "90000,90000,90000,90000,90000,90000,90000"}})},
           10'000);
  EXPECT_EQ(Starts(result, "fixed", StartLevel::kCold), 5u);
  EXPECT_EQ(Of(result, "fixed").peak_memory_bytes, 5 * 170 * kMb);
  EXPECT_EQ(Starts(result, "rekindle", StartLevel::kInstance), 0u);
}

TEST_F(SimulatorTest, ThePeakIsOfAnyMoment) {
  // A second within the minute, and no room to keep anything: at its end nothing is left.
  SimulationResult result =
      Play({files_.Invocations("i.csv", {{"o,a,f,http", {{1, 1}}}}), files_.Memory("m.csv", {{"o,a", "120"}}),
            files_.Durations("d.csv", {{"o,a,f", "1000,1000,1000,1000,1000,1000,1000"}})},
           1);
  for (const char* policy : {"none", "fixed", "snapshot", "hotswap"}) {
    EXPECT_EQ(Of(result, policy).peak_memory_bytes, 120 * kMb) << policy;
    EXPECT_EQ(Of(result, policy).mean_memory_bytes, 0) << policy;
  }
  EXPECT_EQ(Of(result, "rekindle").peak_memory_bytes, 60 * kMb);  // half of it is its template's
}

TEST_F(SimulatorTest, FunctionsShareTheirDependencyImage) {
  std::vector<TraceFiles::Row> rows;
  for (int i = 0; i < 4; ++i) rows.push_back({absl::StrCat("o,a", i, ",f,http"), {{i + 1, 1}}});
  SimulationResult result = Play({files_.Invocations("i.csv", rows)}, 10'000);
  EXPECT_EQ(result.apps, 4u);
  EXPECT_EQ(result.dependencies, 1u);
  EXPECT_EQ(Starts(result, "hotswap", StartLevel::kDependencyDisk), 1u);
  EXPECT_EQ(Starts(result, "hotswap", StartLevel::kDependencyRam), 3u);
  EXPECT_EQ(Starts(result, "snapshot", StartLevel::kImageDisk), 4u);
  EXPECT_EQ(Starts(result, "rekindle", StartLevel::kDependencyDisk), 1u);
  EXPECT_EQ(Starts(result, "rekindle", StartLevel::kDependencyTemplate), 3u);
}

TEST_F(SimulatorTest, DaysFollowEachOther) {
  // Five minutes over midnight.
  SimulationResult result = Play({files_.Invocations("1.csv", {{"o,a,f,http", {{1438, 1}}}}),
                                  files_.Invocations("2.csv", {{"o,a,f,http", {{3, 1}}}})},
                                 10'000);
  EXPECT_EQ(result.days, 2u);
  EXPECT_EQ(Starts(result, "fixed", StartLevel::kInstance), 1u);
  EXPECT_EQ(Of(result, "fixed").samples.size(), 2 * 144u);
}

TEST_F(SimulatorTest, NobodyKeepsMoreThanTheBudget) {
  absl::StatusOr<GeneratedTrace> trace = GenerateTrace({files_.path(), kSanitized ? 30u : 150u, 1, 5});
  ASSERT_TRUE(trace.ok());
  const uint64_t memory_mb = kSanitized ? 1600 : 8000;
  SimulationResult result = Play(trace->files, memory_mb);
  for (const PolicyResult& policy : result.policies) {
    if (policy.over_budget == 0) {
      EXPECT_LE(policy.peak_memory_bytes, memory_mb * kMb) << policy.policy;
    }
    uint64_t all = 0, slow = 0;
    for (uint64_t starts : policy.starts) all += starts;
    for (const PolicyResult::Sample& sample : policy.samples) slow += sample.slow_starts;
    EXPECT_EQ(all, result.invocations) << policy.policy;
    EXPECT_EQ(slow, policy.slow_starts) << policy.policy;
    EXPECT_LE(policy.p50_ms, policy.p90_ms);
    EXPECT_LE(policy.p99_ms, policy.p999_ms);
  }
}

TEST_F(SimulatorTest, TheSameSeedGivesTheSameResult) {
  absl::StatusOr<GeneratedTrace> trace = GenerateTrace({files_.path(), kSanitized ? 12u : 60u, 1, 5});
  ASSERT_TRUE(trace.ok());
  const uint64_t memory_mb = kSanitized ? 800 : 4000;
  SimulationModel model;
  std::string first = ReportJson(Play(trace->files, memory_mb, model), model, options_);
  EXPECT_EQ(ReportJson(Play(trace->files, memory_mb, model), model, options_), first);
  options_.seed = 2;
  EXPECT_NE(ReportJson(Play(trace->files, memory_mb, model), model, options_), first);
}

// The aim. Twice, because the first seed may be luck.
TEST_F(SimulatorTest, OursHasFarFewerSlowStarts) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer: minutes for code that the other tests go through too";
  for (uint64_t seed : {1, 2}) {
    absl::StatusOr<GeneratedTrace> trace = GenerateTrace({files_.path(), 300, 1, seed});
    ASSERT_TRUE(trace.ok());
    for (uint64_t memory_mb : {10'000, 20'000}) {
      SimulationResult result = Play(trace->files, memory_mb, SimulationModel());
      uint64_t ours = Of(result, "rekindle").slow_starts;
      EXPECT_LE(3 * ours, Of(result, "snapshot").slow_starts) << seed << " " << memory_mb;
      EXPECT_LE(10 * ours, Of(result, "fixed").slow_starts) << seed << " " << memory_mb;
    }
  }
}

TEST_F(SimulatorTest, ReportsSayWhatWasCounted) {
  SimulationResult result = Play({files_.Invocations("i.csv", {{"o,a,f,http", {{1, 1}}}})}, 10'000);
  std::string text = ReportText(result, options_);
  EXPECT_THAT(text, HasSubstr("1 invocations of 1 functions"));
  for (const std::string& name : ContenderNames()) EXPECT_THAT(text, HasSubstr(name));
  EXPECT_THAT(text, HasSubstr("PEAK: of memory, at any moment"));
  nlohmann::json json = nlohmann::json::parse(ReportJson(result, ExactModel(), options_));
  EXPECT_EQ(json["policies"].size(), 5u);
  EXPECT_EQ(json["policies"][1]["policy"], "fixed");
  EXPECT_EQ(json["policies"][1]["starts"]["cold"], 1);
  EXPECT_EQ(json["policies"][1]["slow_starts"], 1);
  EXPECT_EQ(json["policies"][4]["memory_bytes"].size(), 144u);
  EXPECT_TRUE(json["disk_budget_bytes"].is_null());
  EXPECT_EQ(json["model"]["spread"], 0);
}

TEST_F(SimulatorTest, AnUnknownPolicyIsAnError) {
  options_.policies = {"fixed", "oracle"};
  EXPECT_THAT(Simulate(ExactModel(), options_).status().message(),
              HasSubstr("there is no policy 'oracle'; there are: none, fixed"));
}

}  // namespace
}  // namespace rekindle::functions
