// The commands under `rekindle template`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/arguments.h"
#include "cli/clone_arguments.h"

namespace rekindle::cli {

// Outlives the CLI::App that it is added to.
class TemplateArguments {
 public:
  void AddTo(CLI::App& app, TimelineOptions* timeline);
  // What was asked for; call it when `template` was the command.
  absl::StatusOr<Command> Finish() const;

 private:
  CLI::App* template_ = nullptr;
  std::string image_, name_, target_;
  bool detach_ = false;
  CloneArguments clone_;
};

}  // namespace rekindle::cli
