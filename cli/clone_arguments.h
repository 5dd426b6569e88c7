// The options of `restore --clone`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/command_line.h"
#include "cli/timeline.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// --trace and --explain.
void AddTimelineOptions(CLI::App* command, TimelineOptions* options);

class CloneArguments {
 public:
  void AddTo(CLI::App* restore);
  // Those that every copy in a sandbox can have.
  void AddSandboxOptionsTo(CLI::App* command);
  // Puts what was given into the request. InvalidArgument names the option.
  absl::Status Apply(v1::RestoreRequest* request) const;
  absl::Status Fill(v1::CloneOptions* clone) const;

 private:
  bool clone_ = false;
  uint32_t count_ = 1;
  std::string network_ = "host", fill_ = "idle", memory_;
  double cpus_ = 0;
  uint32_t processes_ = 0, record_ms_ = 0;
  std::vector<std::string> environment_, binds_;
  CLI::App* restore_ = nullptr;
};

}  // namespace rekindle::cli
