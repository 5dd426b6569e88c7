#include "functions/trace_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "functions/azure_trace.h"
#include "functions/trace_files_for_tests.h"

namespace rekindle::functions {
namespace {

TEST(TraceGeneratorTest, TheSameSeedMakesTheSameFiles) {
  TraceFiles one, two, other;
  auto made = [](const TraceFiles& at, uint64_t seed) {
    absl::StatusOr<GeneratedTrace> trace = GenerateTrace({at.path() + "/t", 50, 2, seed});
    EXPECT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->files.size(), 6u);
    std::string all;
    for (const std::string& file : trace->files) all += *ReadFile(file);
    return all;
  };
  std::string first = made(one, 7);
  EXPECT_EQ(first, made(two, 7));
  EXPECT_NE(first, made(other, 8));
}

TEST(TraceGeneratorTest, AFolderThatCannotBeMadeIsNamed) {
  TraceFiles files;
  std::string file = files.Write("file", "");
  absl::StatusOr<GeneratedTrace> trace = GenerateTrace({file + "/t", 5, 1, 1});
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(trace.status().message().find(file), absl::string_view::npos) << trace.status();
}

// What the header promises, measured in what was written. A day, so who comes less than once a day is there
// only sometimes; shares are of all functions.
class SkewTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kFunctions = 8000;

  static void SetUpTestSuite() {
    TraceFiles files;
    absl::StatusOr<GeneratedTrace> made = GenerateTrace({files.path(), kFunctions, 1, 11});
    ASSERT_TRUE(made.ok()) << made.status();
    apps_ = made->apps;
    absl::StatusOr<AzureTrace> trace = AzureTrace::Open(made->files);
    ASSERT_TRUE(trace.ok()) << trace.status();
    absl::StatusOr<TraceDay> day = trace->ReadDay(0);
    ASSERT_TRUE(day.ok()) << day.status();
    daily_.assign(trace->functions().size(), 0);
    by_minute_.assign(trace->functions().size(), {});
    app_daily_.assign(trace->apps().size(), 0);
    for (int minute = 0; minute < kMinutesPerDay; ++minute) {
      for (uint32_t i = day->first[minute]; i < day->first[minute + 1]; ++i) {
        const TraceDay::Calls& calls = day->calls[i];
        daily_[calls.function] += calls.count;
        app_daily_[trace->functions()[calls.function].app] += calls.count;
        by_minute_[calls.function].push_back({minute, calls.count});
      }
    }
    functions_ = trace->functions();
    for (const TraceApp& app : trace->apps()) memory_.push_back(app.memory_mb);
  }
  static void TearDownTestSuite() {
    functions_.clear();
    by_minute_.clear();
  }

  // Of all, those that did not come too.
  static double AtMost(const std::vector<uint64_t>& daily, uint64_t limit, uint64_t all) {
    auto more = std::count_if(daily.begin(), daily.end(), [&](uint64_t n) { return n > limit; });
    return 1 - static_cast<double>(more) / static_cast<double>(all);
  }
  static double Quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  }

  static inline uint64_t apps_ = 0;
  static inline std::vector<uint64_t> daily_, app_daily_;
  static inline std::vector<double> memory_;
  static inline std::vector<TraceFunction> functions_;
  static inline std::vector<std::vector<std::pair<int, uint32_t>>> by_minute_;
};

TEST_F(SkewTest, ApplicationsByRate) {
  EXPECT_NEAR(AtMost(app_daily_, 24, apps_), 0.45, 0.05);    // once an hour
  EXPECT_NEAR(AtMost(app_daily_, 1440, apps_), 0.81, 0.04);  // once a minute
}

TEST_F(SkewTest, FunctionsByRate) {
  EXPECT_NEAR(AtMost(daily_, 10, kFunctions), 0.56, 0.05);
  EXPECT_NEAR(AtMost(daily_, 288, kFunctions), 0.835, 0.04);
  EXPECT_NEAR(AtMost(daily_, 10'000, kFunctions), 0.97, 0.01);
}

TEST_F(SkewTest, FewMakeNearlyAllInvocations) {
  std::vector<uint64_t> sorted = app_daily_;
  std::sort(sorted.rbegin(), sorted.rend());
  auto top = sorted.begin() + static_cast<int64_t>(0.186 * static_cast<double>(apps_));
  double all = static_cast<double>(std::accumulate(sorted.begin(), sorted.end(), uint64_t{0}));
  EXPECT_GT(static_cast<double>(std::accumulate(sorted.begin(), top, uint64_t{0})) / all,
            0.98);  // the paper: 99.6 %
}

TEST_F(SkewTest, FunctionsPerApplication) {
  // All of them, so the ones that are never called too: a trace of many days would show them.
  EXPECT_NEAR(static_cast<double>(kFunctions) / static_cast<double>(apps_), 3.2, 0.6);
}

TEST_F(SkewTest, DurationsAndMemoryFollowTheirFits) {
  std::vector<double> seconds;
  for (size_t i = 0; i < functions_.size(); ++i) {
    ASSERT_TRUE(functions_[i].has_duration);
    seconds.push_back(functions_[i].duration_ms[3] / 1e3);
  }
  const double to_mean = std::exp(0.125);  // of the log-normal within a function: its mean by its median
  EXPECT_NEAR(std::log(Quantile(seconds, 0.5) * to_mean), -0.38, 0.25);
  EXPECT_NEAR(std::log(Quantile(seconds, 0.16) * to_mean), -0.38 - 2.36, 0.4);
  EXPECT_NEAR(Quantile(memory_, 0.5), 139.6, 6);  // of Burr's distribution
  EXPECT_NEAR(Quantile(memory_, 0.1), 98.5, 5);
  EXPECT_NEAR(Quantile(memory_, 0.9), 261, 20);
}

TEST_F(SkewTest, TimersArePeriodic) {
  size_t timers = 0;
  std::map<int, int> periods;
  for (size_t i = 0; i < functions_.size(); ++i) {
    if (!functions_[i].timer) continue;
    ++timers;
    std::set<int> gaps;
    for (size_t at = 1; at < by_minute_[i].size(); ++at) {
      gaps.insert(by_minute_[i][at].first - by_minute_[i][at - 1].first);
      EXPECT_EQ(by_minute_[i][at].second, 1u);
    }
    if (by_minute_[i].size() > 1) {
      ASSERT_EQ(gaps.size(), 1u);
      ++periods[*gaps.begin()];
    }
  }
  EXPECT_NEAR(static_cast<double>(timers) / kFunctions, 0.156, 0.015);
  for (const auto& [period, count] : periods) {
    EXPECT_TRUE(period == 1 || period == 5 || period == 15 || period == 30 || period == 60) << period;
  }
}

TEST_F(SkewTest, TheOthersArePeriodicRandomAndBursty) {
  // Index of dispersion of the counts in ten minutes: 0 periodic, 1 Poisson, more for bursts.
  int periodic = 0, poisson = 0, bursty = 0;
  for (size_t i = 0; i < functions_.size(); ++i) {
    if (functions_[i].timer || daily_[i] < 2000 || daily_[i] > 20'000) continue;
    std::vector<double> counts(144, 0);
    for (const auto& [minute, count] : by_minute_[i]) counts[static_cast<size_t>(minute / 10)] += count;
    double mean = static_cast<double>(daily_[i]) / 144, variance = 0;
    for (double count : counts) variance += (count - mean) * (count - mean) / 143;
    double dispersion = variance / mean;
    // The wave over the day adds 0.02 of the mean.
    ++(dispersion < 0.3 ? periodic : dispersion < 1.6 + 0.03 * mean ? poisson : bursty);
  }
  const double all = periodic + poisson + bursty;
  ASSERT_GT(all, 150);
  EXPECT_NEAR(periodic / all, 0.12, 0.07);
  EXPECT_NEAR(poisson / all, 0.26, 0.12);
  EXPECT_NEAR(bursty / all, 0.62, 0.12);
}

}  // namespace
}  // namespace rekindle::functions
