// Files that a job had open for writing become again what they were when its image was taken, so that what it
// writes once more is not there twice. What is done, and what can't be: docs/files.md.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/job_launcher.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "rekindle/v1/supervision.pb.h"
#include "restore/file_rollback.h"

namespace rekindle::daemon {

// One that is being carried out. Movable.
class RollbackOfFiles {
 public:
  RollbackOfFiles() = default;
  RollbackOfFiles(std::vector<restore::FileAction> plan, std::optional<RunAs> user, bool dry_run)
      : plan_(std::move(plan)), user_(std::move(user)), tells_of_cut_(dry_run) {}

  // The paths of those that CutOff cuts off.
  std::set<std::string> cut_last() const;
  // The rest of it, as restore::CatchUpWithFiles and CutFilesOff.
  absl::Status CatchUp();
  absl::Status CutOff();
  // When the restore has failed: removes the copies of what was not cut off.
  void GiveUp();
  // What was done with each file, or would be, in the order of their paths.
  std::vector<v1::FileRollback> Reports() const;

 private:
  std::vector<restore::FileAction> plan_;
  std::optional<RunAs> user_;
  bool tells_of_cut_ = false;
};

// To be called when no process of the job lives any more, before restore::Restore, for which CatchUp and
// CutOff of what is returned do the rest. Checks everything first, and with `rollback.dry_run` does no more
// than that. Nothing is done with Mode NONE. `user` has the rights with which files are opened, made and
// removed (UserOfJob); nullopt: our own. Names that are symbolic links now, and files that are others now,
// are left as they are. May be called again, after a success as after a failure: what is done already is not
// done again. The job does not get the `replaced` ones, by path (FilesReplacedByLog): it can be restored
// without them. FailedPrecondition, with nothing changed: a file that the job needs is not there or is too
// short, and can't be put back; the message names it. ResourceExhausted: no room for what is put back, or for
// the copy of a discarded tail. Thread-safe, but for one job at a time.
absl::StatusOr<RollbackOfFiles> RollBackFiles(const store::ImageReader& image,
                                              const v1::JobManifest& manifest, const v1::Rollback& rollback,
                                              const std::optional<RunAs>& user,
                                              restore::SeenFrom place = restore::SeenFrom::kMachine,
                                              const std::set<std::string>& replaced = {});

// The user that the job ran as, where the service is root and the job was not; else nothing.
std::optional<RunAs> UserOfJob(const v1::JobManifest& manifest);

}  // namespace rekindle::daemon
