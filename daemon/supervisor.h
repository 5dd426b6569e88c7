// The supervised jobs of this process. They outlive it: the daemon takes over those that nobody supervises.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "daemon/call.h"
#include "daemon/copy_followers.h"
#include "daemon/garbage_timer.h"
#include "daemon/starting_jobs.h"
#include "daemon/supervised_job.h"
#include "daemon/wakeup.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

class Node;

// Thread-safe.
class Supervisor {
 public:
  // How long the record of a job that has ended is kept, and of how many of one owner.
  static constexpr absl::Duration kKeepEnded = absl::Hours(24);
  static constexpr size_t kMostEndedOfOne = 1000;

  explicit Supervisor(Node& node);
  ~Supervisor() { Leave(); }

  // In the daemon: takes over the jobs of the store that others have left, and from then on those that others
  // leave when they end. Unavailable: another daemon does that; this one does once the other has ended.
  absl::Status Begin() ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts one; where it goes on from an older image than was asked for first, its warnings say so.
  // AlreadyExists: its name belongs to one that somebody supervises, or should, or to a record
  // that can't be used. Unavailable: this is a daemon, and another one supervises the jobs of this store.
  absl::StatusOr<std::shared_ptr<SupervisedJob>> Run(const Call& call, const v1::RunRequest& request,
                                                     v1::JobStarted* started) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes over the one with this name, which another process has left. NotFound: there is none;
  // AlreadyExists: somebody supervises it; FailedPrecondition: it is another machine's, or its record is of a
  // newer version; DataLoss: its record is damaged; any other error: try again.
  absl::Status TakeOver(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound: there is none, or its record can't be used, which the message says.
  absl::StatusOr<std::shared_ptr<SupervisedJob>> Find(const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<v1::Job> List(const ProcessChildren& all) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a user's that have not ended.
  std::set<std::string> NamesOf(uid_t owner) const ABSL_LOCKS_EXCLUDED(mutex_);
  // AlreadyExists: a supervised job that has not ended has it, running or not at the moment, whoever
  // supervises it.
  absl::Status CheckNameIsFree(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for somebody who is told no more of other users' jobs than that.
  absl::Status CheckNameIsFreeFor(const Caller& caller, const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // For one that is being started: CheckLogIsOwn finds its log once it has a record, until when the result is
  // to be kept. See StartingJobs::TakeLog.
  absl::StatusOr<std::shared_ptr<void>> ReserveLog(const std::string& log, bool supervised) {
    return starting_.TakeLog(log, supervised);
  }

  // Nothing where there is no such supervised job.
  void WillEnd(const std::string& name, int signal) ABSL_LOCKS_EXCLUDED(mutex_);
  // The one that this process supervises, and whose root that is; null: none.
  std::shared_ptr<SupervisedJob> FindRunning(const std::string& name, pid_t pid) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of an image of it: image, digest, when it was taken, and its number (0: the next one).
  void AddPoint(const std::string& name, pid_t pid, v1::RestartPoint point) ABSL_LOCKS_EXCLUDED(mutex_);
  // For an image that is taken now, but may become one of its points later, with the labels of one; 0: no
  // such job.
  uint64_t TakeNumber(const std::string& name, pid_t pid, std::map<std::string, std::string>* labels)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // On a thread of its own, not more often than now and then; with 0, as soon as it can.
  void CollectGarbageSoon(double seconds = 60) { garbage_.CollectSoon(seconds); }

  // A last image of each, side by side: this node is about to go.
  void CheckpointAll(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // Until these are where they are to be copied to, as far as that goes on; then nothing more is copied.
  // `of_ended`, `given_up`: see CopyFollowers.
  void AwaitCopies(const Deadline& deadline, bool of_ended = false,
                   const std::function<bool()>& given_up = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // In seconds, by the images' name, of jobs that take them by interval.
  std::map<std::string, double> PeriodsOfImages() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets all jobs run on without us.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Run, from this image alone. `of_image`: that it failed lies in that, or in how that fits the machine.
  absl::StatusOr<std::shared_ptr<SupervisedJob>> RunFrom(const Call& call, const v1::RunRequest& request,
                                                         v1::JobStarted* started, bool* of_image)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<SupervisedJob>> Jobs() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<SupervisedJob> Get(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  Node& node_;
  // The right to supervise a new job of that name, which nobody else takes until the reservation is dropped.
  // AlreadyExists: it is another's, or nobody can tell.
  absl::StatusOr<SupervisedHold> TakeName(const Caller& caller, const std::string& name,
                                          std::shared_ptr<void>* reservation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SupervisedHold> Claim(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LockJobs(absl::Duration patience = absl::ZeroDuration()) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeOverAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void WatchOthersLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the job is started: that its images can be copied to where they are to go.
  absl::Status TryCopyTo(const Call& call, const v1::RunRequest& request) const;
  std::vector<CopyPlan> CopyPlans() const ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginCopying() ABSL_LOCKS_EXCLUDED(mutex_);
  // Jobs that ended more than kKeepEnded ago, and the oldest of those that are too many.
  void ForgetLongEnded() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of jobs that nobody knows any more.
  void RemoveOldLogs();
  // Once for each reason.
  void Tell(const std::string& name, const std::string& what) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string directory() const;

  StartingJobs starting_;
  GarbageTimer garbage_;
  // Taken before the locks of the jobs, and with none of the two above.
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Wakeup watcher_wakeup_;
  UniqueFd lock_ ABSL_GUARDED_BY(mutex_);  // of the one daemon of this machine that takes jobs over
  std::thread watcher_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> told_ ABSL_GUARDED_BY(mutex_);
  // Jobs of other machines that share the store, and when to look again, of CLOCK_MONOTONIC.
  std::map<std::string, int64_t> of_others_ ABSL_GUARDED_BY(mutex_);
  // Records in which there is nothing to take over, damaged ones too, with inode and time: until they are
  // replaced.
  std::map<std::string, std::pair<uint64_t, int64_t>> settled_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<SupervisedJob>> jobs_ ABSL_GUARDED_BY(mutex_);
  // In a daemon, once it has begun, and where a command supervises a job whose images are copied.
  std::unique_ptr<CopyFollowers> copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
