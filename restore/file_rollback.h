// Files that a job wrote after its image was taken are made what they were then, so that what the job writes
// once more is not there twice. First a plan, which looks and decides; then it is carried out. docs/files.md
// says what becomes of which file, and why.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "rekindle/v1/supervision.pb.h"
#include "restore/compatibility.h"
#include "restore/discarded_tail.h"
#include "restore/renamed_file.h"
#include "restore/rotated_log.h"

namespace rekindle::restore {

// Calls its argument at once, with the rights of the user on whose behalf files are looked up, opened, made
// and renamed; where it can't get them, not at all. Bytes go through descriptors, outside it.
using WithRights = std::function<void(const std::function<void()>&)>;

struct FileAction {
  v1::FileRollback report;    // what is to be done; afterwards what was done
  v1::WrittenFile recorded;   // what the image says
  bool blocks = false;        // LEFT so that the job can't be restored: it is not there, or too short
  uint64_t discarded_at = 0;  // where that begins, of which the report has the length
  bool keep_tail = false;     // a log, or another file: what is discarded is kept beside it
  // The copies of that; the last is of what the file has now, others of what it had in between.
  struct Tail {
    KeptTail kept;
    bool with_our_rights = false;
  };
  std::vector<Tail> tails;
  // Can the job go on when it is found shorter before it is cut off, or written anew?
  bool may_be_shorter = false, may_be_anew = false;
  bool cut_off = false;
  // MADE_AGAIN with what it has under the name that it has by now, where the image lacks its content.
  RenamedFile renamed;
  // Names that it, and other logs beside it, get back before anything else is done with it.
  RotatedNames rotated;
  std::string name;       // in `folder`
  std::string half_made;  // what it is called there until it is whole
  UniqueFd folder;        // where it lies, by O_PATH
  // Below `folder`, from the top: of its folders those that are gone, to be made with it.
  std::vector<std::string> missing_folders;
  std::optional<uint64_t> present_bytes;  // of the regular file that has its name now
  // The path of SQLite's database that it belongs to: its files are put back together, or not at all. Empty:
  // of none.
  std::string database;
  // What has its name now, open for reading and writing: the inode of the image, or one that is replaced. Not
  // valid: nothing is there, or to be done.
  UniqueFd file;
};

// By path; with Mode NONE shared memory alone, which is put back with every mode. Changes nothing.
// `rollback.dry_run` is of no importance here. The job does not get those that are `replaced`, by path.
// InvalidArgument: a path to ignore is not absolute.
absl::StatusOr<std::vector<FileAction>> PlanRollback(const v1::JobManifest& manifest,
                                                     const store::ImageReader& image,
                                                     const v1::Rollback& rollback,
                                                     const WithRights& with_rights,
                                                     SeenFrom place = SeenFrom::kMachine,
                                                     const std::set<std::string>& replaced = {});

// FailedPrecondition names the files without which the job can't be restored, and what to do.
absl::Status CheckPlan(const std::vector<FileAction>& plan);

// What is cut off can't be had back, and where this restore comes to nothing an older image may go on from
// there, or a newer one that was passed over: so it is done when all else has gone well.
bool IsCutLast(const FileAction& action);

// All but that. Files that are made again come first, beside the old ones: when one of them fails
// (ResourceExhausted: no room, for tails neither, also for those of CutFilesOff) they are removed and nothing
// has changed. A later failure leaves some files rolled back and others not; whatever happened, a new plan
// does the rest.
absl::Status PutFilesBack(const store::ImageReader& image, const WithRights& with_rights,
                          std::vector<FileAction>* plan);

// A restore takes long, and others may write to the files meanwhile. Adds to the copies of tails what has
// come since, and looks whether each file was only appended to. Where it was not, and the job can go on with
// it, it is LEFT; else Aborted names it. Nothing is cut off. May be called several times.
absl::Status CatchUpWithFiles(const WithRights& with_rights, std::vector<FileAction>* plan);

// Cuts them off, after all of that for all of them: a failure but that of the cutting itself leaves them all
// as they are. To be called before the job runs. What was cut off is not again.
absl::Status CutFilesOff(const WithRights& with_rights, std::vector<FileAction>* plan);

// Removes the copies of what was not cut off, when the restore has failed.
void RemoveUselessTails(const WithRights& with_rights, std::vector<FileAction>* plan);

// Shared memory that had no name loses the one it was made again with: once the job has it, or can't be
// restored.
void RemoveNamelessMemory(const v1::JobManifest& manifest);

}  // namespace rekindle::restore
