// The commands under `rekindle group`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/arguments.h"
#include "cli/rollback_arguments.h"

namespace rekindle::cli {

// Outlives the CLI::App that it is added to.
class GroupArguments {
 public:
  void AddTo(CLI::App& app);
  // What was asked for; call it when `group` was the command.
  absl::StatusOr<Command> Finish(const std::string& working_directory) const;

 private:
  absl::StatusOr<Command> FinishCheckpoint(const std::string& working_directory) const;
  absl::StatusOr<Command> FinishRestore(const std::string& working_directory) const;

  CLI::App* group_ = nullptr;
  std::string reference_, staging_memory_, log_directory_, id_, decision_;
  std::vector<std::string> members_, labels_, map_;
  bool stop_ = false, replace_ = false, tcp_established_ = false, tcp_close_ = false,
       ignore_mismatch_ = false;
  double freeze_limit_ = 0, gpu_lock_timeout_ = 0;
  RollbackArguments checkpoint_files_, rollback_;
};

// "[HOST/]JOB": HOST is a daemon's address, JOB a PID or a job's name.
absl::StatusOr<v1::GroupMember> ParseGroupMember(const std::string& text);

}  // namespace rekindle::cli
