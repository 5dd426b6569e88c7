// The options of `rekindle export`, `import` and `copy`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "cli/arguments.h"

namespace rekindle::cli {

// Outlives the CLI::Apps that it is added to.
class TransferArguments {
 public:
  void AddToExport(CLI::App* command);
  void AddToImport(CLI::App* command);
  void AddToCopy(CLI::App* command);
  // What was asked for; `name` is the command's. `tls`: files for daemons of other machines were named.
  absl::StatusOr<Command> Finish(const std::string& name, bool tls,
                                 const std::string& working_directory) const;

 private:
  absl::StatusOr<Command> Export(const std::string& working_directory) const;
  absl::StatusOr<Command> Import(const std::string& working_directory) const;
  absl::StatusOr<Command> Copy(bool tls, const std::string& working_directory) const;
  absl::Status CheckForBucket() const;

  std::string image_, since_, to_, from_, file_, criu_, reference_, parent_;
  bool replace_ = false, whole_ = false, follow_ = false;
  uint32_t keep_ = 0;
};

}  // namespace rekindle::cli
