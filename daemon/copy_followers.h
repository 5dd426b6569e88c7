// Those who copy the images of supervised jobs elsewhere as they come, a command for each job.
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
  struct Asks {
    // Of all jobs whose images go elsewhere, also of those that have ended lately.
    std::function<std::vector<CopyPlan>()> plans;
    // What is known of copies, judged.
    std::function<std::vector<v1::CopyState>()> states;
    // That a job's images do not get there, and why, or (empty) that they do again: once for each change.
    std::function<void(const CopyPlan& plan, const std::string& trouble)> tell;
  };
  // `asks` are asked now and then, on any thread. `node` outlives this: the commands copy from its store, and
  // leave their trace in the notes there.
  CopyFollowers(const NodeOptions& node, Asks asks);
  // Ends the commands. What was under way is given up; the next ones do it again.
  ~CopyFollowers();

  // Until the last image of each job is where it is to go, as far as that goes on. Logs of which it is not.
  // `of_ended`: also of jobs that have ended, which this process does not outlive. `given_up` may be null.
  void AwaitCopies(const Deadline& deadline, bool of_ended, const std::function<bool()>& given_up);

 private:
  struct Follower {
    CopyPlan plan;
    Subprocess process;
    CommandOutput output;
    int64_t start_at_ns = 0, started_at_ns = 0;  // of CLOCK_MONOTONIC
    absl::Duration back_off;
    bool troubled = false;  // which is told
  };

  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that are to run: of a job that has ended until its last image is there.
  std::vector<CopyPlan> Wanted() const;
  void Reconcile();
  void Start(Follower& follower);
  void LookAfter(Follower& follower);
  void TellOfTrouble();
  // Else nobody is ever told that its images are there: its user has too many notes.
  bool CanBeNoted(const CopyPlan& plan) const;
  // Where the command can't say it.
  void NoteTrouble(const CopyPlan& plan, const std::string& why) const;

  const NodeOptions& node_;
  const Asks asks_;
  // Of the loop's thread alone, by the job's name.
  std::map<std::string, std::unique_ptr<Follower>> followers_;
  int64_t tell_at_ns_ = 0;
  Wakeup wakeup_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
