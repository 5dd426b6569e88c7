// The options that say what becomes of files: of `restore --rollback`, `ckpt --file-contents` and
// `--track-path`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "rekindle/v1/group.pb.h"
#include "rekindle/v1/rekindle.pb.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::cli {

class RollbackArguments {
 public:
  // --rollback, --ignore-path and --dry-run.
  void AddToRestore(CLI::App* restore);
  // Without --dry-run.
  void AddToGroupRestore(CLI::App* restore);
  // --rollback, --ignore-path and --track-path, of a job that is supervised.
  void AddToRun(CLI::App* run);
  // --file-contents, --ignore-path and --track-path; of a group too.
  void AddToCheckpoint(CLI::App* ckpt);
  // Put what was given into the request; paths are taken from `working_directory`. InvalidArgument names the
  // option.
  absl::Status Apply(const std::string& working_directory, v1::RestoreRequest* request) const;
  absl::Status Apply(const std::string& working_directory, v1::RestoreGroupRequest* request) const;
  void Apply(const std::string& working_directory, v1::CheckpointRequest* request) const;
  void Apply(const std::string& working_directory, v1::CheckpointGroupRequest* request) const;
  void Apply(const std::string& working_directory, v1::Supervision* policy) const;

 private:
  // Were roll-back options given at all?
  bool Given() const;
  void FillRestore(const std::string& working_directory, v1::Rollback* rollback) const;
  void Fill(const std::string& working_directory, v1::Rollback* rollback) const;
  template <typename Request>
  void FillCheckpoint(const std::string& working_directory, Request* request) const;

  std::string mode_;
  std::vector<std::string> ignore_paths_, track_paths_, keep_removed_;
  bool dry_run_ = false, contents_ = false;
};

}  // namespace rekindle::cli
