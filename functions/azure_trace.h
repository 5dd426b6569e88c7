// Traces in the format of the Azure Functions dataset of 2019 (AzurePublicDataset,
// AzureFunctionsDataset2019.md), as they are: CSV, three kinds, told apart by their first line.
//   invocations  HashOwner,HashApp,HashFunction,Trigger,1..1440    invocations in each minute of one day
//   durations    HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0..100    in
//   ms memory       HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1..100 in MB
// Several days are several files of a kind; the days of invocations follow each other in the order in which
// they are given.
//
// One day's counts are in memory at a time, only those that are not 0. Not thread-safe. Errors name file and
// line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

inline constexpr int kMinutesPerDay = 1440;
// More is taken for an error: it could not be added up for all that runs.
inline constexpr double kMostMemoryMb = 1e6, kMostDurationMs = 1e12;

struct TraceFunction {
  uint64_t name_hash = 0;  // of owner, application and function; the same in every run
  uint32_t app = 0;
  bool timer = false;
  bool has_duration = false;
  // Of its durations in ms: the percentiles 0, 1, 25, 50, 75, 99, 100.
  std::array<float, 7> duration_ms{};
};

struct TraceApp {
  uint64_t name_hash = 0;  // of owner and application
  double memory_mb = 0;    // 0: not told
};

// One day. Of minute m: calls[first[m]] to calls[first[m + 1]].
struct TraceDay {
  struct Calls {
    uint32_t function = 0, count = 0;
  };
  std::vector<Calls> calls;
  std::array<uint32_t, kMinutesPerDay + 1> first{};
};

class AzureTrace {
 public:
  // Sorts the files by kind and reads durations and memory.
  static absl::StatusOr<AzureTrace> Open(const std::vector<std::string>& paths);

  size_t days() const { return days_.size(); }
  // Functions that were not there before come in.
  absl::StatusOr<TraceDay> ReadDay(size_t day);

  // Those of the days read so far; indices stay.
  const std::vector<TraceFunction>& functions() const { return functions_; }
  const std::vector<TraceApp>& apps() const { return apps_; }

 private:
  absl::Status ReadDurations(const std::string& path);
  absl::Status ReadMemory(const std::string& path);

  std::vector<std::string> days_;
  std::vector<TraceFunction> functions_;
  std::vector<TraceApp> apps_;
  absl::flat_hash_map<uint64_t, uint32_t> function_ids_, app_ids_;
  absl::flat_hash_map<uint64_t, std::array<float, 7>> durations_;
  absl::flat_hash_map<uint64_t, double> memory_;
};

}  // namespace rekindle::functions
