// Capture: a running process tree becomes an image in the store, and runs on.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/staging_arena.h"
#include "ckpt/standing_job.h"
#include "ckpt/temporary_files.h"
#include "criu/installation.h"
#include "dedup_store/store.h"
#include "gpu_state/job_mover.h"

namespace rekindle::ckpt {

class DirtyPages;  // dirty_pages.h

// Lets somebody else have a say in a capture: the coordinator of a group. Called by the capture's own
// threads.
class CaptureGate {
 public:
  virtual ~CaptureGate() = default;
  // All is ready for the job to be frozen, CRIU too (of one that uses a GPU, CRIU is started then); it still
  // runs. With a status other than OK the capture ends with it.
  virtual absl::Status BeforeFreeze() = 0;
  // The job stands still, and its memory is being copied: for what is begun beside that. Must not wait. May
  // be called twice.
  virtual void StandsStill() {}
  // The job stands still and its memory is in our hands. It goes on when this returns, so that must be soon.
  virtual absl::Status OnFrozen() = 0;
  // All of the image is known, nothing of it is there.
  virtual absl::Status BeforeCommit() = 0;
  // A capture has failed, and a new one begins after a pause: the job need not wait for it until then.
  virtual void BeforeNextTry() {}
};

struct CaptureOptions {
  pid_t pid = 0;          // root of the tree
  std::string reference;  // "name:tag"
  std::string parent;     // empty: the newest image of the same job, else of the same name
  bool no_parent = false;
  bool stop = false;  // kill the tree once the image is committed; before that it stays, stopped
  // It stays stopped, also after that: see CaptureResult::standing. Not with `stop`.
  bool stand_still = false;
  bool replace = false;         // take over a reference that exists
  bool replace_others = false;  // that, too, of an image of another owner
  // Live TCP connections are carried, and packets held back while the job is frozen if it has any before it
  // freezes, or if this is set.
  bool tcp_established = false;
  bool tcp_close = false;  // drop them
  uint64_t staging_budget_bytes =
      0;  // RAM for the frozen job's memory; 0: half of what is free. Beyond it: spills
  absl::Duration gpu_lock_timeout = absl::Seconds(10);  // for work under way on a GPU to end
  bool file_contents = false;                           // the content of files that the job rewrites in place
  std::vector<std::string> ignore_paths;                // whose content is left out; absolute
  // Files that are recorded also where the job has them not open (base/file_patterns.h).
  std::vector<std::string> track_paths;
  // Its copies have a /tmp of their own, and begin with what the job has in one of its own
  // (temporary_files.h), of which there may be so much; nullopt: they have the machine's.
  std::optional<TemporaryLimits> temporary_files;
  uid_t owner = 0;                   // of the image
  uid_t caller = 0;                  // 0 may capture anything, others what is theirs
  std::vector<gid_t> caller_groups;  // all of them, where it is not 0
  pid_t caller_pid = 0;              // the process that asked; it must not be part of the job
  std::string job_name;              // "": none
  std::string log;                   // where the job's output goes, if known
  std::map<std::string, std::string> labels;
  CaptureGate* gate = nullptr;  // null: nobody; not owned
  // What is not written between images is copied only once; null: always; not owned. The same one for all
  // captures.
  DirtyPages* dirty_pages = nullptr;
  std::string prepared_id;        // see store::NewImageOptions
  std::string runtime_directory;  // short path, for sockets and journals; made when absent
  std::string spill_directory;    // on a disk with room
  // Of a job that is captured again and again: memory that one capture leaves to the next; not owned; null:
  // none.
  KeptStaging* kept_staging = nullptr;
  bool sparing = false;  // see store::NewImageOptions
};

struct CaptureProgress {
  const char* phase = "";  // "preflight", "prepare", "gpu", "freeze", "commit"
  uint64_t bytes_done = 0, bytes_total = 0;
  double elapsed_seconds = 0;
  std::vector<std::string> devices = {};  // of "gpu": UUIDs
};

class CaptureObserver {
 public:
  virtual ~CaptureObserver() = default;
  virtual void OnProgress(const CaptureProgress& progress) = 0;  // any thread, one call at a time
};

struct CaptureResult {
  store::ImageInfo image;
  // How long the job stood still. CRIU's own measure, first task stopped to last task running again; for a
  // job that uses a GPU, from the lock of its CUDA calls to their unlock.
  double freeze_seconds = 0;
  int64_t frozen_ns = 0;         // a moment at which it did, by base/timeline.h's clock
  uint64_t gpu_bytes = 0;        // device memory in the image
  uint64_t unchanged_bytes = 0;  // not copied, because the kernel tracked that the parent image has them
  double commit_seconds = 0;     // hashing, compressing, writing and syncing, while the job ran
  double total_seconds = 0;
  uint32_t processes = 0, threads = 0;
  std::vector<std::pair<std::string, double>> phases;
  std::vector<std::string> warnings;
  absl::Status ended;                     // with CaptureOptions::stop: an error, if the job has not
  pid_t hook_process = 0;                 // which the runtime hook holds; 0: none
  std::unique_ptr<StandingJob> standing;  // with CaptureOptions::stand_still
  std::vector<std::string> command_lines;
};

// Captures the tree of `options.pid`. Blocking; several captures of different trees may run at once; a second
// one of the same tree is refused (Aborted). On any failure the job goes on as it was and the store has no
// trace. `gpu` may be null: a job that uses a GPU is then refused. `observer` may be null. Setting
// `*cancel` ends the capture soon with Cancelled.
absl::StatusOr<CaptureResult> Capture(store::Store& store, const criu::Installation& criu, gpu::JobMover* gpu,
                                      const CaptureOptions& options, CaptureObserver* observer,
                                      const std::atomic<bool>* cancel);

// Lets jobs go on that a capture of a dead Rekindle process left stopped. Quick when there are none; called
// by whatever starts next. Where the CRIU of one has not ended, that is waited for, of all at the same time
// and for 45 s at most, or until `gives_up` says so, on any thread; then its processes are added to `left`.
// Returns the PIDs it set free. `before` is called with each job's processes, from one thread at a time. All
// three may be null.
absl::StatusOr<std::vector<pid_t>> RecoverInterruptedCaptures(
    const std::string& runtime_directory,
    const std::function<void(const std::vector<pid_t>& tree)>& before = nullptr,
    const std::function<bool()>& gives_up = nullptr, std::vector<pid_t>* left = nullptr);

// Takes in a plain CRIU image directory made by `criu dump`. Its files are read where they lie: a link, a
// pipe or a device among them is FailedPrecondition. `cancel` (may be null) as in Capture.
absl::StatusOr<store::ImageInfo> ImportCriuDirectory(store::Store& store, const std::string& directory,
                                                     const std::string& reference, const std::string& parent,
                                                     uid_t owner, CaptureObserver* observer,
                                                     const std::atomic<bool>* cancel);

}  // namespace rekindle::ckpt
