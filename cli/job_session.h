// One job that a command starts, restores or attaches to: it starts, its output is followed, signals are
// passed on to it, and it ends, also where its daemon goes and comes back meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/local_job.h"
#include "cli/log_follower.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/side_calls.h"
#include "cli/timeline_report.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// "SIGKILL"
std::string NameOfSignal(int signal);

// Which mean what a job makes of them: where it is followed, they are handed on to its first process, and
// nothing else is done.
const std::vector<int>& SignalsForJobs();

// Not thread-safe but for what `interrupts` calls. All that it is given outlives it.
class JobSession {
 public:
  // `lets_go`: SIGHUP, as of a connection that is lost, is no signal for the job, which was there before. For
  // a supervised one of a daemon it is none as soon as it runs. `stop_on`: signals that end a supervised job,
  // with a last image.
  JobSession(Client& client, const Output& output, Interrupts& interrupts, bool detach, bool follow_log,
             bool lets_go = false, std::vector<int> stop_on = {});
  ~JobSession() { interrupts_.SetAction(nullptr); }

  void OnEvent(const v1::JobEvent& event);

  // Nothing is to be started: what was done with files is the result.
  void SetDryRun() { dry_run_ = true; }
  // The call ends when the hook holds the job.
  void SetAwaitsHold() { awaits_hold_ = true; }
  // The job runs on this machine.
  void SetIsHere() { is_here_ = true; }
  void Follow(TimelineReport* timelines) { timelines_ = timelines; }

  // `status`: of the call that started the job, or attached to it. Where that ended because the daemon has
  // gone, the job has not.
  int Finish(absl::Status status);

  const std::optional<v1::JobStarted>& started() const { return started_; }
  // Of several copies, each.
  const std::vector<v1::JobStarted>& all_started() const { return all_started_; }

 private:
  // With a job, or some copies, that run on.
  absl::Status InterruptedLater() const;
  bool LetGo(int signal);

  // False: some of the job's output was not shown.
  bool EndOutput();
  void OnExited(const v1::JobExit& exit);

  // Of several copies, the first one's first: they end in any order, and not even start in theirs.
  std::vector<v1::JobExit> ExitsByNumber() const;
  void OnRolledBack(const v1::FilesRolledBack& files);
  void OnStarted(const v1::JobStarted& started);

  // Of one that it was attached to, the end that the log has now.
  static uint64_t LogOffset(const v1::JobStarted& started);
  void TellStarted(const v1::JobStarted& started) const;

  // What goes to a file that the job had open is not shown, and the user may wait for it here.
  void TellOutput(const std::string& file);
  absl::Status Signal(int pid, int signal);
  // Returns at once: another signal may be to end what this one has begun.
  void PassOn(const std::string& name, int signal);
  enum class How { kHandOn, kEndWithImage, kEndWithoutImage };
  void SignalSupervised(const std::string& name, int signal, How how);
  bool StopsOn(int signal) const;
  bool IsForJob(int signal) const;

  // OK also where no image could be taken, which is told: the job runs on then. Unavailable: nobody was
  // asked.
  absl::Status StopWithImage(const std::string& name, int signal);
  absl::Status StopWithoutImage(const std::string& name, int signal);
  void NoteStopped(int signal, v1::StopJobResponse stopped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The exit status of one that a signal has ended, with a last image or without the one that was wanted.
  std::optional<int> EndOfStopped();
  std::shared_ptr<const LocalJob> LocalOf(int pid);

  // Until the job has ended. `lost`: why the call that followed it has ended; returned where it can't be
  // followed without the daemon.
  absl::Status StayWithJob(const absl::Status& lost);
  absl::Status AwaitLocalJobs(const absl::Status& lost);
  absl::Status AttachAgain(absl::Status lost);

  // False: the user waits no longer.
  bool PauseForDaemon();
  void OnRestarted(const v1::JobRestarted& restarted);
  void OnImagesMissing(const v1::JobImagesMissing& missing);
  void OnCopies(const v1::JobCopiesTrouble& copies);

  Client& client_;
  const Output& output_;
  Interrupts& interrupts_;
  const bool detach_, follow_log_, lets_go_;
  const std::vector<int> stop_on_;
  bool waits_told_ = false;
  absl::Mutex mutex_;
  std::vector<int> pids_ ABSL_GUARDED_BY(mutex_);  // who gets the signals
  // The last one, which copies that start later get, too; of a supervised job, one that it is still to get.
  int signal_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t attached_ ABSL_GUARDED_BY(mutex_) = 0;           // so often to a supervised job
  int missed_ ABSL_GUARDED_BY(mutex_) = 0;                  // came before the job was known
  bool signal_since_told_ ABSL_GUARDED_BY(mutex_) = false;  // one came since the daemon has gone
  bool left_ ABSL_GUARDED_BY(mutex_) = false;               // a supervised job, to itself
  bool hung_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool takes_last_image_ ABSL_GUARDED_BY(mutex_) = false;  // with which a signal ends the job
  bool gives_up_image_ ABSL_GUARDED_BY(mutex_) = false;    // as another one wants
  bool hung_up_at_end_ ABSL_GUARDED_BY(mutex_) = false;    // while it was taken
  std::set<int> held_ ABSL_GUARDED_BY(mutex_);             // came meanwhile, for the job if it runs on
  int stopped_by_ ABSL_GUARDED_BY(mutex_) = 0;             // the signal that has ended it
  v1::StopJobResponse stopped_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const LocalJob>> locals_ ABSL_GUARDED_BY(mutex_);  // by PID
  bool dry_run_ = false, awaits_hold_ = false, is_here_ = false;
  ProgressBar progress_;
  std::optional<v1::JobStarted> started_;
  std::vector<v1::JobStarted> all_started_;
  std::vector<v1::JobExit> exits_;  // as they came
  std::unique_ptr<LogFollower> follower_;
  std::string told_output_;
  TimelineReport* timelines_ = nullptr;
  SideCalls calls_;  // the last: they use the others
};

}  // namespace rekindle::cli
