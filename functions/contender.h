// The policies that the simulator compares, all behind one interface and all with the same budgets.
//   none      every start is cold, nothing is kept
//   fixed     an idle instance is kept for 10 minutes; cold start otherwise
//   snapshot  PreBaking (Silva, Fireman, Pereira, Middleware 2020): a snapshot of each function, of the full
//   size, is on
//             disk from its deployment on; what is not served by an idle instance is restored from it by
//             stock CRIU. Idle instances are kept as in `fixed`; snapshots that were read stay in memory that
//             nobody else wants, as files do in the page cache: those used longest ago go first, idle
//             instances only when none is left. (One order for both by last use gives it more slow starts.)
//   hotswap   HotSwap (Li, Tiwari, Cooperman, IEEE CLOUD 2025): as `snapshot`, but what is restored (with
//   lazy pages) is
//             the dependency image, one for all functions that share it; then the function's code is loaded
//   rekindle  ours: KeepAlivePolicy
// An instance of the first four shares nothing with others, so it takes its application's memory. Where a
// budget for disk is given, images that were used longest ago go from there too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "functions/keep_alive_profile.h"
#include "functions/simulation_model.h"

namespace rekindle::functions {

struct Budgets {
  uint64_t memory_bytes = 0;
  uint64_t disk_bytes = UINT64_MAX;
  double slow_start_ms = 100;
};

// Not thread-safe. Times never go back.
class Contender {
 public:
  struct Usage {
    uint64_t memory_bytes = 0, disk_bytes = 0;
  };

  virtual ~Contender() = default;
  // Ids count from 0.
  virtual void AddDependency(double mb, Micros now) = 0;
  virtual void AddFunction(const ModelFunction& function, Micros now) = 0;
  virtual StartDecision Arrived(FunctionId function, Micros now) = 0;
  virtual void BecameIdle(FunctionId function, Micros now) = 0;
  virtual void Advance(Micros now) = 0;
  // When Advance may next make usage rise; INT64_MAX: it is not going to, unless something else happens.
  virtual Micros NextChange() const = 0;
  virtual Usage usage() const = 0;
};

// In the order of the reports.
const std::vector<std::string>& ContenderNames();
// nullptr: there is no such policy.
std::unique_ptr<Contender> MakeContender(absl::string_view name, const SimulationModel& model,
                                         const Budgets& budgets);

}  // namespace rekindle::functions
