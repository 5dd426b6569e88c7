// The options of `rekindle export`, `import` and `copy`, and of `ls`, which looks where they copy to.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "cli/arguments.h"

namespace rekindle::cli {

// As options name such places.
inline constexpr char kPlaces[] = "HOST|DIR|rclone:REMOTE:PATH";

// Where images are besides the store at hand.
struct ImagePlace {
  std::string
      where;  // a daemon, as --host names it, or the folder of a store; of an object store as it was given
  std::string bucket;  // the object store, as rclone names it; empty: it is none
};

// `option` is what `place` was given for. `tls`: files for daemons of other machines were named.
absl::StatusOr<ImagePlace> ParsePlace(absl::string_view option, const std::string& place, bool tls,
                                      const std::string& working_directory);

// Outlives the CLI::Apps that it is added to.
class TransferArguments {
 public:
  void AddToExport(CLI::App* command);
  void AddToImport(CLI::App* command);
  void AddToCopy(CLI::App* command);
  void AddToLs(CLI::App* command);
  // What was asked for; `name` is the command's. `tls`: files for daemons of other machines were named.
  absl::StatusOr<Command> Finish(const std::string& name, bool tls,
                                 const std::string& working_directory) const;

 private:
  absl::StatusOr<Command> Export(const std::string& working_directory) const;
  absl::StatusOr<Command> Import(const std::string& working_directory) const;
  absl::StatusOr<Command> Copy(bool tls, const std::string& working_directory) const;
  absl::StatusOr<Command> Ls(bool tls, const std::string& working_directory) const;
  absl::Status CheckForBucket() const;

  std::string image_, since_, to_, from_, file_, criu_, reference_, parent_, owner_;
  std::vector<std::string> texts_;
  bool replace_ = false, whole_ = false, follow_ = false, check_ = false;
  uint32_t keep_ = 0;
};

}  // namespace rekindle::cli
