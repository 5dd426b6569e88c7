// Restore: an image becomes a running process tree again, with its own PIDs, all pages in place before it
// runs.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/timeline.h"
#include "base/unique_fd.h"
#include "criu/installation.h"
#include "dedup_store/image_in_memory.h"
#include "dedup_store/store.h"
#include "gpu_state/job_mover.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/cgroup_membership.h"
#include "restore/compatibility.h"

namespace rekindle::restore {

struct RestoreOptions {
  std::string log;         // standard output and error of the root go here; empty: where they went
  std::vector<int> stdio;  // descriptors for 0, 1, 2 (all three or none); not owned
  bool tcp_close = false;
  bool ignore_mismatch = false;
  uid_t caller = 0;
  pid_t into = 0;         // the job comes back in the container of this process; 0: where we are
  pid_t placed_like = 0;  // the job gets no processors but those of this process; 0: ours
  // Where the job goes; null: it stays in ours. Not owned.
  const CgroupMembership* cgroups = nullptr;
  std::string runtime_directory;  // short path; the image's small files are laid out below it or in /dev/shm
  gpu::DevicePairs gpu_map;       // where the GPU state goes; empty: the same GPUs, or free ones of the model
  int cancel_fd = -1;             // readable: give up (Cancelled)
  bool timeline = false;          // keep one; it costs some milliseconds
  const store::ImageInMemory* in_memory = nullptr;  // of this image or of another; null: none; not owned
  // Called when all else was checked and before anything is started: makes the files that the job writes what
  // they were, on a thread that sees the files as the job will. They are checked after it, but for the size
  // of those whose paths it returns. Null: they are left as they are.
  std::function<absl::StatusOr<std::set<std::string>>(const store::ImageReader& image,
                                                      const v1::JobManifest& manifest)>
      roll_back;
  // Files at and below these paths are taken as they are, also those that the job only reads.
  std::vector<std::string> ignored_paths;
  EditedFiles edited_files = EditedFiles::kRefuseMapped;
  // Called when every process is there with all of its memory and none has run, before `before_running`:
  // looks whether those files can be cut off, and cuts off none. Null: there is nothing to be done.
  std::function<absl::Status()> before_cut;
  // Called after that, and when the job's GPU state is where it was, as what is likely to fail has gone well;
  // the job's threads still stand: cuts those files off, as `roll_back` sees them. From any thread. Null: as
  // above.
  std::function<absl::Status()> cut_off;
  // Somebody has said what is to be done with files, and it was: no cure is told of those that have grown.
  bool files_settled = false;
  // Asked when every process is there with all of its memory and none has run, with the PID of the first; they
  // run when it returns. With a status other than OK they are killed and the restore fails with it. Empty: they
  // run at once.
  std::function<absl::Status(pid_t root)> before_running;
};

struct RestoreProgress {
  const char* phase = "";  // "plan", "metadata", "files", "criu", "pages", "gpu"
  uint64_t bytes_done = 0, bytes_total = 0;
  double elapsed_seconds = 0;
  std::vector<std::string> devices = {};  // of "gpu": UUIDs
};

class RestoreObserver {
 public:
  virtual ~RestoreObserver() = default;
  virtual void OnProgress(const RestoreProgress& progress) = 0;  // any thread, one call at a time
};

struct RestoreResult {
  pid_t root = 0;    // our number of it; a child of the calling process: reap it
  UniqueFd channel;  // the control channel of a job with the runtime hook; not valid: it has none
  store::ImageInfo image;
  v1::JobManifest manifest;
  double total_seconds = 0;
  std::vector<std::pair<std::string, double>> phases;
  Timeline timeline;
  std::vector<std::string> warnings;
  std::vector<std::string> command_lines;
};

// Blocking; several restores may run at once, of one `image` too. On failure nothing of the tree is left.
// FailedPrecondition before anything is started: a PID or a file lock is in use, a needed file has gone or
// changed its size, CPU features are missing, the kernel or CRIU is too old for the image, its GPUs are not
// there. `gpu` may be null: an image with GPU state is then refused.
absl::StatusOr<RestoreResult> Restore(const store::ImageReader& image, const criu::Installation& criu,
                                      gpu::JobMover* gpu, const RestoreOptions& options,
                                      RestoreObserver* observer);

// Removes what restores that died have left in memory (see RestoreOptions::runtime_directory).
void RemoveDeadRestores(const std::string& runtime_directory);

// The image's own description.
absl::StatusOr<v1::JobManifest> ReadJobManifest(const store::ImageReader& image);

struct ExportResult {
  uint32_t files = 0;
  uint64_t bytes = 0;
  size_t semaphores = 0;  // eventfds, of which CRIU alone makes counters
};
// Writes a plain CRIU image directory (`criu restore -D directory` works on it), which is whole and durable
// once it has an inventory.img. The folder must be absent, or empty and nobody's but ours or `caller`'s; on
// failure what was written is removed. `*cancel` ends it soon with Cancelled.
absl::StatusOr<ExportResult> ExportCriuDirectory(const store::Store& store, const std::string& image,
                                                 const std::string& directory, uid_t caller,
                                                 RestoreObserver* observer,
                                                 const std::atomic<bool>* cancel = nullptr);

}  // namespace rekindle::restore
