// Makes traces of the skew that Azure Functions has, in the format of its dataset (azure_trace.h).
//
// Source of all numbers, unless marked: Shahrad et al., "Serverless in the Wild" (USENIX ATC 2020), and its
// figures as Microsoft published them with the dataset (AzurePublicDataset,
// analysis/AzureFunctionsDataset2019-Trace_Analysis.md).
//   functions per application   figure 1: 54 % of applications have one, 95 % at most 10
//   triggers                    figure 2 (ATC): http 55.0 %, queue 15.2, event 2.2, orchestration 6.9,
//   timer 15.6, storage
//                               2.8, others 2.2 of the functions (their sum is 99.9)
//   invocations a day           figure 5a, functions, read off; cut at a million a day (assumption), which
//   makes the mean
//                               about 3,000, what the published trace has. For applications follows what the
//                               paper says: 45 % at most one an hour, 81 % at most one a minute
//   periods of timers           the steps of figure 5a: a day, an hour, 30, 15, 5, 1 minutes
//   kinds of arrivals           figure 6, of applications without timers: 12 % periodic (coefficient of
//   variation about 0),
//                               then Poisson (1) until 38 %, the others bursty (above 1). Bursts: sessions
//                               that come as a Poisson process, with a geometric number of invocations (mean
//                               2 to 50) within 1 to 10 minutes (assumption)
//   change over the day         figure 4: a wave of 20 % (read off), not for what is periodic
//   mean durations              figure 7: log-normal, of seconds: mu -0.38, sigma 2.36; at most 600 s and at
//   most 20 at
//                               once on average (assumptions). Within a function: log-normal, sigma 0.5
//                               (assumption)
//   memory of an application    figure 8: Burr, c 11.652, k 0.221, lambda 107.083 MB; at most 1536 MB,
//   Azure's limit
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace rekindle::functions {

struct GeneratorOptions {
  std::string directory;  // made if it is not there
  uint32_t functions = 1000;
  uint32_t days = 1;
  uint64_t seed = 1;
};

struct GeneratedTrace {
  std::vector<std::string> files;  // in the order in which `rekindle sim --trace` takes them
  uint64_t functions = 0, apps = 0, invocations = 0;
};

// The same options make the same files. A file that is there is replaced.
absl::StatusOr<GeneratedTrace> GenerateTrace(const GeneratorOptions& options);

}  // namespace rekindle::functions
