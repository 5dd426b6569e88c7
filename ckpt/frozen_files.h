// What of a job's files can be told only while it stands still, and how that gets into its image: names that
// are lost, the files that it writes and reads, the folders of its sockets, a /tmp of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/opened_files.h"
#include "ckpt/capture.h"
#include "ckpt/frozen_dump.h"
#include "ckpt/job_inspection.h"
#include "ckpt/leases.h"
#include "ckpt/lost_names.h"
#include "ckpt/read_files.h"
#include "ckpt/readable_files.h"
#include "ckpt/socket_folders.h"
#include "ckpt/staging_arena.h"
#include "ckpt/temporary_files.h"
#include "ckpt/tracked_files.h"
#include "ckpt/written_files.h"
#include "criu/job_namespaces.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// A deleted file that the job still holds goes into the image whole, up to this size.
inline constexpr uint64_t kGhostLimitBytes = 1ull << 30;

// Of one capture. Its calls come in this order, one at a time; of the look any thread's.
class FrozenFiles {
 public:
  // All three must outlive it. `own_mounts`: mounts_check.h. The job runs.
  FrozenFiles(const CaptureOptions& options, const JobInspection& job, const criu::JobNamespaces& namespaces,
              std::string own_mounts);

  // What the job had open when the image before this one was taken.
  void LearnBefore(std::vector<v1::WrittenFile> files) { before_ = std::move(files); }

  // What the look may copy into the arena, by what the job has open now.
  uint64_t EstimateContents() const;

  // Reads what would else come from the disk in the freeze.
  void LookAhead();

  // The job is about to be frozen.
  void FreezeBegins();

  // To be taken at the end of the freeze, although that costs some of it (0.1 ms for a small job, 0.7 ms of
  // 210 ms for one with torch, most of it for reading CRIU's images): these tell which files the job writes,
  // how long they are, and where it stands in them, but not which inode and content a name has, and once the
  // job runs that may be another. `run` is the name of CRIU's run, `available_bytes` the memory that is free
  // now. Contents go into `arena`.
  FrozenLook Look(const std::string& run, uint64_t available_bytes, StagingArena* arena);

  // After a dump: makes its small images say under which names the job's files are found. Fails where the
  // image would lack something of the job, or hold what the caller may not have.
  absl::Status PutIntoImages(std::map<std::string, std::string>* criu_files,
                             std::vector<std::string>* warnings);

  // Records what the job has open in `manifest`, which has the needed files.
  void RecordOpened(v1::JobManifest* manifest) const;

  // Records the rest, and gives its contents to `writer`: the arena must live until that has committed.
  absl::Status AddToImage(store::ImageWriter& writer, v1::JobManifest* manifest,
                          std::vector<std::string>* warnings);

 private:
  absl::StatusOr<std::map<std::string, std::string>> WithNamesOfOutside(
      const std::map<std::string, std::string>& criu_files) const;
  void LookAt(const std::map<std::string, std::string>& criu_files);
  void LookAtMounts(std::vector<pid_t> pids);
  absl::Status CheckFilesOutside(absl::string_view files) const;
  std::vector<pid_t> FrozenProcesses(absl::string_view tree) const;
  void NoteOpened(const std::vector<pid_t>& pids);
  ReadableFiles FilesTheOwnerMayHave(std::vector<pid_t> pids) const;
  WrittenFilesOptions WrittenOptions() const;
  absl::StatusOr<TakenTemporaryFiles> TakeTemporary() const;
  absl::Status CheckNamelessMemory() const;
  absl::Status AddWritten(store::ImageWriter& writer, v1::JobManifest* manifest,
                          std::vector<std::string>* warnings);
  void AddSocketFolders(v1::JobManifest* manifest, std::vector<std::string>* warnings);

  // Of a job with all its namespaces CRIU has the memory file systems, too.
  bool LooksAtWritten() const { return sees_our_files_ || namespaces_.entered(); }
  std::string JobsRoot() const;
  std::string NameOfJob() const;

  const CaptureOptions& options_;
  const JobInspection& job_;
  const criu::JobNamespaces& namespaces_;
  const bool sees_our_files_;
  const std::string own_mounts_;
  std::shared_ptr<Leases> leases_;
  TrackedFiles tracked_;
  std::optional<std::vector<v1::WrittenFile>> before_;
  std::string run_;
  uint64_t most_file_bytes_ = 0;
  StagingArena* arena_ = nullptr;

  absl::Status mounts_ = absl::UnavailableError("the job's mounts were not looked at while it stood still");
  std::map<std::string, std::string> files_outside_;  // those that have the names that they had before
  absl::StatusOr<LostNames> lost_names_ = LostNames();
  absl::Status may_have_it_ = absl::UnavailableError("the job was not looked at while it stood still");
  ReadFiles read_;
  std::map<InodeIdentity, int> opened_;  // with R_OK, W_OK, X_OK
  absl::StatusOr<SocketFolders> socket_folders_ = SocketFolders();
  absl::StatusOr<WrittenFiles> written_ = WrittenFiles();
  absl::StatusOr<TakenTemporaryFiles> temporary_ = TakenTemporaryFiles();
};

}  // namespace rekindle::ckpt
