// The supervised jobs of this node. In the daemon they outlive it: the next one takes them over.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/call.h"
#include "daemon/supervised_job.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

class Node;

// Thread-safe.
class Supervisor {
 public:
  // How long the record of a job that has ended is kept.
  static constexpr absl::Duration kKeepEnded = absl::Hours(24);

  explicit Supervisor(Node& node) : node_(node) {}
  ~Supervisor() { Leave(); }

  // Takes over what an earlier daemon has left, if `take_over`. Unavailable: another process supervises this
  // store's jobs.
  absl::Status Begin(bool take_over) ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts one. FailedPrecondition: Begin() was refused.
  absl::StatusOr<std::shared_ptr<SupervisedJob>> Run(const Call& call, const v1::RunRequest& request,
                                                     v1::JobStarted* started) ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound names those there are.
  absl::StatusOr<std::shared_ptr<SupervisedJob>> Find(const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<v1::Job> List() const ABSL_LOCKS_EXCLUDED(mutex_);
  // AlreadyExists: a supervised job that has not ended has it, running or not at the moment.
  absl::Status CheckNameIsFree(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Nothing where there is no such supervised job.
  void WillEnd(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddPoint(const std::string& name, pid_t pid, const std::string& image, int64_t taken_unix_ns)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // On a thread of its own, not more often than now and then; with 0, as soon as it can.
  void CollectGarbageSoon(double seconds = 60) ABSL_LOCKS_EXCLUDED(mutex_);

  // A last image of each, side by side: this node is about to go.
  void CheckpointAll(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets all jobs run on without us.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::vector<std::shared_ptr<SupervisedJob>> Jobs() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<SupervisedJob> Get(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  Node& node_;
  mutable absl::Mutex mutex_;
  bool GarbageIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || absl::Now() >= collect_at_;
  }
  void CollectGarbageLoop() ABSL_LOCKS_EXCLUDED(mutex_);

  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time collect_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time collected_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::thread collector_ ABSL_GUARDED_BY(mutex_);
  UniqueFd lock_ ABSL_GUARDED_BY(mutex_);  // on the folder of the records
  std::map<std::string, std::shared_ptr<SupervisedJob>> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
