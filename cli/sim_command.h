// `rekindle sim`: the simulator of functions/, in this process; it needs no daemon and no store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace rekindle::cli {

// What `rekindle sim` is to do.
struct SimRequest {
  std::vector<std::string> traces, policies;
  std::string memory = "64G", disk, model, plot, generate;
  double slow_ms = 100;
  uint32_t functions = 1000, days = 1;
  uint64_t seed = 1;
  bool print_model = false;
};

// Outlives the CLI::App that it is added to.
class SimArguments {
 public:
  void AddTo(CLI::App& app);
  // What was asked for; call it when `sim` was the command.
  absl::StatusOr<SimRequest> Finish() const;

 private:
  CLI::App* sim_ = nullptr;
  SimRequest request_;
};

ExitCode RunSimulation(const Output& output, const SimRequest& request);

}  // namespace rekindle::cli
