// The commands under `rekindle fn` and `rekindle deps`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/arguments.h"

namespace rekindle::cli {

// Outlives the CLI::App that it is added to.
class FunctionArguments {
 public:
  void AddFnTo(CLI::App& app);
  void AddDepsTo(CLI::App& app);
  // What was asked for; call it when `fn` or `deps` was the command.
  absl::StatusOr<Command> Finish(const std::string& working_directory) const;

 private:
  void AddDeploy();
  void AddSet();
  // What a function has beside its code: of a deployment, or to be changed.
  void AddSettings(CLI::App* command);
  void AddLayers(CLI::App* command);
  void AddInvoke();
  absl::StatusOr<Command> FinishDeploy(const std::string& working_directory) const;
  absl::StatusOr<Command> FinishSet(const std::string& working_directory) const;
  absl::StatusOr<Command> FinishLogs() const;
  absl::StatusOr<Command> FinishDeps(const std::string& working_directory) const;
  // A v1::FunctionSpec, or a v1::SetFunctionRequest: what was given of these.
  template <typename Settings>
  absl::Status FillLimits(Settings& settings) const;

  CLI::App* fn_ = nullptr;
  CLI::App* deps_ = nullptr;
  CLI::App* set_ = nullptr;
  std::string name_;
  std::vector<std::string> names_;

  std::string runtime_, handler_, code_, dependencies_ = "auto", memory_, timeout_, start_timeout_,
                                         network_ = "host", description_, venv_;
  std::vector<std::string> layers_, environment_, removed_environment_;
  uint32_t provisioned_ = 0, max_instances_ = 0;
  double cpus_ = 0;
  bool replace_ = false, force_ = false, no_image_ = false, no_layers_ = false;

  std::string payload_, context_, output_;
  bool async_ = false, dry_run_ = false, log_tail_ = false;

  bool follow_ = false;
  uint32_t tail_ = 0;
  CLI::Option* tail_option_ = nullptr;
  std::string since_;

  std::vector<std::string> modules_;
  bool rebuild_ = false;
};

}  // namespace rekindle::cli
