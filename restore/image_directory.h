// The images folder that CRIU restores from, made in memory (tmpfs) for one restore and removed after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "criu/image_files.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/withheld_pages.h"

namespace rekindle::restore {

// Which pages CRIU does not get: of large areas that are filled before the job runs (withheld_pages.h), or of
// all that a pager serves while it runs.
enum class PagesWanted { kEager, kLazy };

// Owned by one thread at a time; removes its files when it goes.
class ImageDirectory {
 public:
  // Lays out the image's small files and the pages that CRIU must have. `runtime_directory` is used when it
  // is a tmpfs, else /dev/shm. What does not fit there is in memory all the same: eager, in a file system of
  // its own, and lazy, which sandboxes must see by its name, in /dev/shm (ResourceExhausted: nor there).
  // Folders of restores that died are removed on the way.
  static absl::StatusOr<ImageDirectory> Make(const store::ImageReader& image, const v1::JobManifest& manifest,
                                             const std::string& runtime_directory, PagesWanted pages,
                                             std::atomic<uint64_t>* bytes_done);
  // Its shared memory without a name, which has one while it is restored: whoever removes this folder after
  // us, should we die, removes it.
  absl::Status NoteNamelessMemory(const v1::JobManifest& manifest) const;
  // For a job that had terminals of others and is to get none (criu/terminal_files.h).
  absl::Status ReplaceTerminals();
  // CRIU need not compare these programs and libraries with those of the image (file_identities.h). Before it
  // begins.
  absl::Status ForgetBuildIds(const std::set<std::string>& known_files);

  // As this process and those that see it in /proc may open it.
  const std::string& path() const { return path_; }
  // It is among others, and no two at one time have the same.
  const std::string& name() const { return directory_.path(); }
  const std::vector<criu::PstreeEntry>& tree() const { return tree_; }
  const std::vector<WithheldTask>& withheld() const { return withheld_; }

 private:
  struct Pages;

  ImageDirectory(TemporaryDirectory directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)), path_(directory_.path()) {}
  absl::Status LayOut(const store::ImageReader& image, const v1::JobManifest& manifest,
                      PagesWanted pages_wanted, const Pages& pages, std::atomic<uint64_t>* bytes_done);
  // Whoever would be signalled at the end of a parent that is outside the image is not.
  absl::Status ForgetParents(const store::ImageReader& image);
  // The shell in whose terminal the job ran, and which was no part of it.
  absl::Status ForgetForeignSessions(const store::ImageReader& image);

  TemporaryDirectory directory_;
  UniqueFd lock_;  // locked: its restore lives
  UniqueFd own_;   // of a file system of its own, with all but the lock
  std::string path_;
  std::vector<criu::PstreeEntry> tree_;
  std::vector<WithheldTask> withheld_;
};

// Saves CRIU's log from the folder of a restore that failed, which goes away with the pages and other images
// in it that may hold secrets; `name` is the folder's among others. Returns the folder where the log is now.
std::string KeepRestoreLog(const std::string& runtime_directory, const std::string& folder,
                           const std::string& name);

// Opens a new file for writing.
using FileMaker = std::function<absl::StatusOr<UniqueFd>(const std::string& name)>;
// Writes every small file of the image into one of `make`, as it was dumped; only its expired timers are
// armed again, nothing is sent before all connections are back, and CRIU accepts other sizes of files that
// the job writes, and of those whose beginning `sizes_checked_by` has (null: of none).
struct BlobCount {
  uint32_t files = 0;
  uint64_t bytes = 0;
};
absl::StatusOr<BlobCount> WriteCriuFiles(const store::ImageReader& image, const FileMaker& make,
                                         const v1::JobManifest* sizes_checked_by);

}  // namespace rekindle::restore
