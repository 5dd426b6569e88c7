// Replays traces against policies (contender.h) and counts what their starts cost.
//
// Every invocation is an event. Within its minute, of which alone the trace tells, an invocation comes at a
// random moment; a timer's come evenly, at the same second each minute. Its duration is drawn from the
// function's percentiles, and a start's time spreads around what the model says (SimulationModel::spread):
// the same draws for every policy. An instance serves one invocation at a time; it is busy for the start and
// the duration. What a policy makes ahead of time takes memory at once and is there at once. Nothing waits
// for memory: what is busy beyond the budget is counted.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "functions/contender.h"
#include "functions/keep_alive_profile.h"
#include "functions/simulation_model.h"

namespace rekindle::functions {

struct SimulationOptions {
  std::vector<std::string> traces;    // azure_trace.h
  std::vector<std::string> policies;  // empty: all
  Budgets budgets;
  uint64_t seed = 1;
  std::function<void(double done)> progress;  // share; may be empty
};

struct PolicyResult {
  std::string policy;
  std::array<uint64_t, kStartLevels> starts{};
  uint64_t slow_starts = 0, over_budget = 0;
  double mean_ms = 0, p50_ms = 0, p90_ms = 0, p99_ms = 0,
         p999_ms = 0;                                   // of all starts, warm ones too; within 1 %
  uint64_t peak_memory_bytes = 0, peak_disk_bytes = 0;  // at any moment
  double mean_memory_bytes = 0;                         // of the ends of minutes

  struct Sample {
    uint64_t memory_bytes = 0, disk_bytes = 0, slow_starts = 0;  // slow starts since the sample before
  };
  std::vector<Sample> samples;  // every SimulationResult::kSampleMinutes
};

struct SimulationResult {
  static constexpr int kSampleMinutes = 10;
  uint64_t invocations = 0;
  size_t days = 0, functions = 0, apps = 0, dependencies = 0;
  std::vector<PolicyResult> policies;
};

absl::StatusOr<SimulationResult> Simulate(const SimulationModel& model, const SimulationOptions& options);

}  // namespace rekindle::functions
