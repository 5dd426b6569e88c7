// What `run` is told about supervision; `stop`, `attach`, `wait` and `logs`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/logs_command.h"
#include "cli/rollback_arguments.h"
#include "cli/run_options.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;
struct StopJobs;

class SupervisionArguments {
 public:
  // Those of its options that are followed by a value.
  static const std::vector<std::string>& OptionsWithValue();
  void AddTo(CLI::App* run);
  // Puts what was given into the request; nothing where nothing was. InvalidArgument names the option.
  absl::Status Apply(const GlobalOptions& globals, const std::string& working_directory,
                     v1::RunRequest* request) const;
  bool GoesOnFromImage() const { return !from_.empty(); }
  // Once that was applied.
  absl::StatusOr<RunOptions> OptionsOfRun() const;

  void AddToStop(CLI::App* stop);
  absl::StatusOr<StopJobs> StopRequest() const;
  void AddToAttach(CLI::App* attach);
  v1::AttachJobRequest AttachRequest() const;
  void AddToWait(CLI::App* wait);
  absl::StatusOr<v1::WaitForJobsRequest> WaitRequest() const;
  void AddToLogs(CLI::App* logs);
  const LogsOfJob& LogsRequest() const { return logs_; }

 private:
  absl::Status FillCopyTo(const GlobalOptions& globals, const std::string& working_directory,
                          v1::CopyTo* to) const;

  std::string every_, backoff_, retry_for_, hang_, hang_sign_, image_name_, overhead_, from_, copy_to_,
      stop_on_;
  RollbackArguments rollback_;
  uint32_t restarts_ = 3, keep_ = 3;
  bool at_boot_ = false, tcp_close_ = false, ignore_mismatch_ = false, resume_ = false;
  CLI::App* run_ = nullptr;
  std::vector<std::string> stop_targets_;
  std::string grace_, attach_target_;
  bool stop_checkpoint_ = false;
  std::vector<std::string> wait_targets_;
  std::string wait_timeout_;
  LogsOfJob logs_;
};

}  // namespace rekindle::cli
