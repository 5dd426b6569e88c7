// Those who copy the images of the daemon's supervised jobs elsewhere as they come, a command for each job.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/subprocess.h"
#include "daemon/copy_command.h"
#include "daemon/wakeup.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::daemon {

// Thread-safe.
class CopyFollowers {
 public:
  // `plans`: of all jobs whose images go elsewhere, also of those that have ended lately; asked now and then,
  // on any thread. `socket`: the daemon's, whose commands leave their trace in the notes of `store`.
  CopyFollowers(std::string store, std::string socket, std::function<std::vector<CopyPlan>()> plans);
  // Ends the commands. What was under way is given up; the next ones do it again.
  ~CopyFollowers();

  // Until the last image of each job is where it is to go, as far as that goes on. Logs of which it is not.
  void AwaitCopies(const Deadline& deadline);

 private:
  struct Follower {
    CopyPlan plan;
    Subprocess process;
    CommandOutput output;
    int64_t start_at_ns = 0, started_at_ns = 0;  // of CLOCK_MONOTONIC
    absl::Duration back_off;
  };

  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that are to run: of a job that has ended until its last image is there.
  std::vector<CopyPlan> Wanted() const;
  void Reconcile();
  void Start(Follower& follower);
  void LookAfter(Follower& follower);
  // Else nobody is ever told that its images are there: its user has too many notes.
  bool CanBeNoted(const CopyPlan& plan) const;
  // Where the command can't say it.
  void NoteTrouble(const CopyPlan& plan, const std::string& why) const;

  const std::string store_, socket_;
  const std::function<std::vector<CopyPlan>()> plans_;
  // Of the loop's thread alone, by the job's name.
  std::map<std::string, std::unique_ptr<Follower>> followers_;
  Wakeup wakeup_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
