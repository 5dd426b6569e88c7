// The commands about what the store keeps: prune, gc, fsck, quota.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "cli/arguments.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Outlives the commands' CLI::App.
class StoreArguments {
 public:
  void AddToPrune(CLI::App* prune);
  void AddToGc(CLI::App* gc);
  void AddToFsck(CLI::App* fsck);
  void AddToQuota(CLI::App* quota);
  // What was asked for; `command` is the name of the one that was given.
  // `tls`: files for daemons of other machines were named.
  absl::StatusOr<Command> Finish(absl::string_view command, bool tls,
                                 const std::string& working_directory) const;

 private:
  absl::StatusOr<Command> FinishPrune(bool tls, const std::string& working_directory) const;
  absl::StatusOr<Command> FinishFsck(bool tls, const std::string& working_directory) const;
  absl::StatusOr<Command> FinishQuota() const;

  v1::PruneImagesRequest prune_;
  std::vector<std::string> prune_names_, prune_labels_;
  std::string prune_within_, prune_from_;
  v1::CollectGarbageRequest gc_;
  v1::FsckRequest fsck_;
  std::vector<std::string> fsck_names_;
  std::string fsck_from_;
  std::string quota_owner_, quota_max_, quota_store_max_, quota_high_water_;
};

// "KEY=VALUE". InvalidArgument names the `option` that has it.
absl::StatusOr<v1::Label> ParseLabel(const std::string& text, absl::string_view option);

}  // namespace rekindle::cli
