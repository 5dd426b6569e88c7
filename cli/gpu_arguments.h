// The options of `rekindle gpu …`, and those of other commands that have to do with GPUs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/arguments.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// "OLD=NEW,…", as the messages take it.
absl::Status ParseGpuMap(const std::string& text, google::protobuf::RepeatedPtrField<v1::GpuPair>* pairs);

// Outlives the CLI::App that it is added to.
class GpuArguments {
 public:
  void AddTo(CLI::App& app);
  // What was asked for; call it when `gpu` was the command.
  absl::StatusOr<Command> Finish() const;

 private:
  CLI::App* gpu_ = nullptr;
  std::string job_, other_job_, map_;
  double lock_timeout_ = 0, timeout_ = 0;
  bool pin_ = false, hold_ = false, with_id_ = false, unpin_ = false;
  std::string lease_id_;
};

}  // namespace rekindle::cli
