#include "cli/rollback_arguments.h"

#include <filesystem>

#include "base/status.h"

namespace rekindle::cli {
namespace {

// Absolute, without "." and "..": compared with paths as the kernel has them.
std::string Normal(const std::string& path, const std::string& working_directory) {
  return (std::filesystem::path(working_directory) / path).lexically_normal().string();
}

void AddIgnorePath(CLI::App* command, const std::string& description, std::vector<std::string>* paths) {
  command->add_option("--ignore-path", *paths, description)->type_name("PATH")->allow_extra_args(false);
}

void AddTrackPath(CLI::App* command, std::vector<std::string>* paths) {
  command
      ->add_option("--track-path", *paths,
                   "Files that the job appends to without keeping them open, which a roll-back is to cut "
                   "back: a file, a folder, or a quoted pattern ('runs/**/events.*'); may be repeated")
      ->type_name("PATH")
      ->allow_extra_args(false);
}

}  // namespace

void RollbackArguments::AddToRestore(CLI::App* restore) {
  AddToGroupRestore(restore);
  restore->add_flag("--dry-run", dry_run_, "Only say what --rollback would do; restore nothing");
}

void RollbackArguments::AddToGroupRestore(CLI::App* restore) {
  restore
      ->add_option(
          "--rollback", mode_,
          "Files written since the image: append (cut off what is new), all (and put back content that "
          "the image has), none [none]")
      ->type_name("MODE")
      ->check(CLI::IsMember({"none", "append", "all"}));
  AddIgnorePath(restore,
                "Leave this file, or folder, as it is, also where the job only reads it and it was edited; "
                "may be repeated",
                &ignore_paths_);
}

void RollbackArguments::AddToRun(CLI::App* run) {
  run->add_option(
         "--rollback", mode_,
         "Files that it wrote after the image from which it goes on: append (cut off what is behind their "
         "old end), all (also put back what it rewrote), none [append]")
      ->type_name("MODE")
      ->check(CLI::IsMember({"none", "append", "all"}));
  AddIgnorePath(run, "Never roll back this file, or folder; may be repeated", &ignore_paths_);
  AddTrackPath(run, &track_paths_);
  run->add_option("--keep-removed", keep_removed_,
                  "What the job removes below this folder is there again when it goes on from an image from "
                  "before: for trainings that remove their old checkpoints; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
}

void RollbackArguments::AddToCheckpoint(CLI::App* ckpt) {
  ckpt->add_flag("--file-contents", contents_,
                 "Keep the content of files that a job rewrites in place, for 'restore --rollback all'");
  AddIgnorePath(ckpt, "Keep no content of this file, or folder; may be repeated", &ignore_paths_);
  AddTrackPath(ckpt, &track_paths_);
}

bool RollbackArguments::Given() const { return !mode_.empty() || dry_run_ || !ignore_paths_.empty(); }

void RollbackArguments::FillRestore(const std::string& working_directory, v1::Rollback* rollback) const {
  Fill(working_directory, rollback);
  // Files that it only reads are left alone without a roll-back, too.
  if (mode_.empty() && !dry_run_) rollback->set_mode(v1::Rollback::NONE);
}

absl::Status RollbackArguments::Apply(const std::string& working_directory,
                                      v1::RestoreGroupRequest* request) const {
  if (Given()) FillRestore(working_directory, request->mutable_rollback());
  return absl::OkStatus();
}

absl::Status RollbackArguments::Apply(const std::string& working_directory,
                                      v1::RestoreRequest* request) const {
  if (!Given()) return absl::OkStatus();
  FillRestore(working_directory, request->mutable_rollback());
  request->mutable_rollback()->set_dry_run(dry_run_);
  return absl::OkStatus();
}

void RollbackArguments::Fill(const std::string& working_directory, v1::Rollback* rollback) const {
  rollback->set_mode(mode_ == "none"  ? v1::Rollback::NONE
                     : mode_ == "all" ? v1::Rollback::ALL
                                      : v1::Rollback::APPEND);
  for (const std::string& path : ignore_paths_) rollback->add_ignore_paths(Normal(path, working_directory));
}

template <typename Request>
void RollbackArguments::FillCheckpoint(const std::string& working_directory, Request* request) const {
  request->set_file_contents(contents_);
  for (const std::string& path : ignore_paths_) request->add_ignore_paths(Normal(path, working_directory));
  for (const std::string& path : track_paths_) request->add_track_paths(Normal(path, working_directory));
}

void RollbackArguments::Apply(const std::string& working_directory, v1::CheckpointRequest* request) const {
  FillCheckpoint(working_directory, request);
}

void RollbackArguments::Apply(const std::string& working_directory,
                              v1::CheckpointGroupRequest* request) const {
  FillCheckpoint(working_directory, request);
}

void RollbackArguments::Apply(const std::string& working_directory, v1::Supervision* policy) const {
  Fill(working_directory, policy->mutable_rollback());
  for (const std::string& path : track_paths_) policy->add_track_paths(Normal(path, working_directory));
  for (const std::string& folder : keep_removed_) policy->add_keep_removed(Normal(folder, working_directory));
}

}  // namespace rekindle::cli
