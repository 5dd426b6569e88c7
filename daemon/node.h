// What the remote procedures of one service share: where things lie, the store, CRIU, the jobs. Everything
// costly is made when it is first needed: most commands need little of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/stream_patience.h"
#include "ckpt/dirty_pages.h"
#include "criu/installation.h"
#include "daemon/access_policy.h"
#include "daemon/calls_of_users.h"
#include "daemon/gpu_jobs.h"
#include "daemon/job_launcher.h"
#include "daemon/job_mark.h"
#include "daemon/job_reaper.h"
#include "daemon/job_registry.h"
#include "daemon/job_room.h"
#include "daemon/old_logs.h"
#include "daemon/templates.h"
#include "daemon/work_counts.h"
#include "dedup_store/store.h"
#include "gpu_state/job_mover.h"
#include "restore/clone.h"

namespace rekindle::daemon {

class Functions;   // functions.h
class Supervisor;  // supervisor.h

struct NodeOptions {
  std::string store;              // the store's folder
  std::string runtime_directory;  // jobs, sockets, journals: short, gone after a reboot
  std::string log_directory;      // default place of jobs' logs
  LogBounds log_bounds;           // a daemon removes those of ended jobs beyond
  std::optional<gid_t> admin_group;
  uint64_t gpu_host_budget = UINT64_MAX;  // host memory that parked jobs' device memory may take
  // Of images' pages that clones share; nothing: what a pager that runs has, else
  // restore::DefaultCacheBytes().
  std::optional<uint64_t> page_cache_bytes;
  // Copies that a daemon keeps ready of each image that is in use (restore/standby.h).
  size_t standby_copies = 2;
  // Memory that instances of functions, and what is kept for them, may take; 0: a share of what is free.
  uint64_t function_memory_bytes = 0;
  // That a user may have at a time who is no administrator; 0: any number.
  size_t jobs_of_one = 0;
  // How long whoever is sent an image may take nothing of it, and whoever sends one may send nothing: as long
  // as that goes on, what it needs of the store stays, though it may be removed long since.
  absl::Duration stream_patience = StreamPatience();
  bool track_dirty_pages = false;  // see ckpt/dirty_pages.h
  bool daemon = false;             // false: hosted in the command's own process
  std::string socket;              // of a daemon, for commands that it runs itself
};

// The places used when nothing else is said: /run/rekindle and /var/log/rekindle for root, folders of their
// own for others. $REKINDLE_RUNTIME_DIR and $REKINDLE_LOG_DIR go before.
std::string DefaultRuntimeDirectory();
std::string DefaultLogDirectory();

// Thread-safe.
class Node {
 public:
  explicit Node(NodeOptions options);
  ~Node();

  const NodeOptions& options() const { return options_; }
  const AccessPolicy& policy() const { return policy_; }
  JobRegistry& jobs() { return jobs_; }
  JobReaper& reaper() { return reaper_; }
  CallsOfUsers& calls() { return *calls_; }
  JobsBeingStarted& jobs_being_started() { return *jobs_being_started_; }
  MarkUses& mark_uses() { return mark_uses_; }
  // Starts nothing before a job that uses a GPU is met.
  gpu::JobMover& gpus() { return gpus_; }
  // Null: not asked for, or the kernel can't.
  ckpt::DirtyPages* dirty_pages() { return dirty_pages_.get(); }
  GpuJobs& gpu_jobs() { return gpu_jobs_; }
  restore::CloneStarter& clones() { return clones_; }
  const restore::CloneStarter& clones() const { return clones_; }
  Templates& templates() { return templates_; }
  Supervisor& supervisor() { return *supervisor_; }
  WorkCounts& counts() { return counts_; }
  // FailedPrecondition: functions live in the daemon. It starts them up when it begins to serve.
  absl::StatusOr<std::shared_ptr<Functions>> functions() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetFunctions(std::shared_ptr<Functions> functions) ABSL_LOCKS_EXCLUDED(mutex_);
  // They end, or could not be started up.
  void NoFunctions(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  enum class Access {
    kRead,    // the store must be there
    kWrite,   // the store must be there
    kCreate,  // it is made if need be
    kRepair,  // a lost catalog is made again
  };
  // One that was there is never made anew: Unavailable as long as it is away. When it has come back, or
  // another one has come to its place, that is opened.
  absl::StatusOr<std::shared_ptr<store::Store>> OpenStore(Access access) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before anything of our own is put beside the store's content: Unavailable or NotFound where there is none
  // now.
  absl::Status CheckStoreIsThere() ABSL_LOCKS_EXCLUDED(mutex_);

  // Where images have been cloned before: starts what the next clone needs, the pager and a sandbox. A pager
  // that runs is kept. Logs what goes wrong.
  void WarmUp() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<criu::Installation> Criu() const { return criu::FindCriu(); }
  // For what is tried again by itself: Unavailable where there is none now, as while its package is replaced.
  absl::StatusOr<criu::Installation> CriuIfAny() const;

  // Lets jobs go on that a dead Rekindle left stopped or without their GPU memory, and removes what it left
  // in memory. Before anything else, whatever it is; does its work once, and what it can't do it logs. In the
  // daemon what a CRIU still has, which may be for long, is left to a thread: others' calls do not wait for
  // it.
  void RecoverJobs() ABSL_LOCKS_EXCLUDED(mutex_);

  // InvalidArgument: its path is too long for the sockets in it.
  absl::Status CheckRuntimeDirectory() const;
  // Makes the runtime directory. Before anything that has to do with running jobs.
  absl::Status MakeRuntimeDirectory() const;

  // From now on no work is begun, as jobs are: last images are being taken.
  void TakeNoMoreWork() { ending_.store(true); }
  // Unavailable: that is so.
  absl::Status CheckTakesWork() const;
  // From now on nobody waits for a job's end any more: the daemon is about to go.
  void BeginStopping() {
    stopping_.store(true);
    gpu_jobs_.Stop();
  }
  bool stopping() const { return stopping_.load(); }

  // The user to do things as on behalf of `caller`; nothing: the service's own user is the one.
  static std::optional<RunAs> UserOf(const Caller& caller);

 private:
  const NodeOptions options_;
  const AccessPolicy policy_;
  WorkCounts counts_;
  JobRegistry jobs_;
  JobReaper reaper_;
  const std::shared_ptr<CallsOfUsers> calls_ = std::make_shared<CallsOfUsers>();
  const std::shared_ptr<JobsBeingStarted> jobs_being_started_ = std::make_shared<JobsBeingStarted>();
  MarkUses mark_uses_;
  gpu::JobMover gpus_;
  const std::unique_ptr<ckpt::DirtyPages> dirty_pages_;
  GpuJobs gpu_jobs_;
  restore::CloneStarter clones_;
  Templates templates_;
  std::atomic<bool> ending_{false}, stopping_{false};
  // The PIDs that a CRIU still has, for which `gives_up` would not wait.
  std::vector<pid_t> RecoverNow(const std::function<bool()>& gives_up);

  std::atomic<bool> gives_up_recovery_{false};
  std::thread recovery_;  // made once, before there are calls
  mutable absl::Mutex mutex_;
  std::shared_ptr<Functions> functions_ ABSL_GUARDED_BY(mutex_);
  std::function<uint64_t(std::optional<uid_t> owner)> counts_code_ ABSL_GUARDED_BY(mutex_);  // empty: none
  absl::Status no_functions_ ABSL_GUARDED_BY(mutex_);  // why they are not there
  std::shared_ptr<store::Store> store_ ABSL_GUARDED_BY(mutex_);
  bool store_writable_ ABSL_GUARDED_BY(mutex_) = false;
  bool recovered_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Supervisor> supervisor_;  // goes first: it uses all the rest
};

}  // namespace rekindle::daemon
