#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "cli/commands.h"
#include "cli/local_job.h"
#include "cli/log_follower.h"
#include "cli/logs_command.h"
#include "cli/progress_bar.h"
#include "cli/rollback_table.h"
#include "cli/table.h"
#include "cli/timeline.h"
#include "cli/top_frame.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

constexpr int kKilledBySignal = 128;  // as shells say it
constexpr size_t kLongestRemark = 1000;
// Of a job that ended while nobody watched it.
constexpr int kUnknownEnd = 255;
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(500);

std::string Percent(uint64_t part, uint64_t whole) {
  return whole == 0
             ? "0.0 %"
             : absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// "SIGKILL"
std::string NameOfSignal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

// What becomes of the timelines of one command: used as soon as the last has come, for the job may run long.
class Timelines {
 public:
  static absl::StatusOr<Timelines> Prepare(const Output& output, const TimelineOptions& options,
                                           size_t expected) {
    std::optional<TraceFile> file;
    if (!options.trace_file.empty()) {
      RK_ASSIGN_OR_RETURN(TraceFile created, TraceFile::Create(options.trace_file));
      file.emplace(std::move(created));
    }
    return Timelines(output, options, expected, std::move(file));
  }

  void Add(const v1::Timeline& timeline) {
    all_.push_back(timeline);
    if (all_.size() == expected_) Use();
  }

  // After the last, also where fewer came: some copies could not be started.
  void Use() {
    if (used_ || all_.empty()) return;
    used_ = true;
    if (file_) {
      absl::Status written = file_->Write(ChromeTrace(all_));
      if (!written.ok()) output_.Warning(absl::StrCat("no timeline was written: ", written.message()));
    }
    if (!options_.explain) return;
    const auto slowest = std::max_element(all_.begin(), all_.end(),
                                          [](const auto& a, const auto& b) { return Length(a) < Length(b); });
    if (all_.size() > 1)
      output_.Note(absl::StrCat("The slowest of ", all_.size(), ", PID ", slowest->pid(), ":\n"));
    output_.Note(Explain(*slowest));
  }

 private:
  Timelines(const Output& output, const TimelineOptions& options, size_t expected,
            std::optional<TraceFile> file)
      : output_(output), options_(options), expected_(expected), file_(std::move(file)) {}

  static int64_t Length(const v1::Timeline& timeline) {
    int64_t longest = 0;
    for (const v1::Span& span : timeline.spans()) {
      if (span.thread() == "restore") longest = std::max<int64_t>(longest, span.duration_ns());
    }
    return longest;
  }

  const Output& output_;
  const TimelineOptions& options_;
  const size_t expected_;
  std::optional<TraceFile> file_;
  std::vector<v1::Timeline> all_;
  bool used_ = false;
};

// What `run` and `restore` have in common: the job starts, is followed, ends.
class JobSession {
 public:
  // `lets_go`: SIGHUP, as of a connection that is lost, is no signal for the job, which was there before. For
  // a supervised one of a daemon it is none as soon as it runs. `stop_on`: signals that end a supervised job,
  // with a last image.
  JobSession(Client& client, const Output& output, Interrupts& interrupts, bool detach, bool follow_log,
             bool lets_go = false, std::vector<int> stop_on = {})
      : client_(client),
        output_(output),
        interrupts_(interrupts),
        detach_(detach),
        follow_log_(follow_log),
        lets_go_(lets_go),
        stop_on_(std::move(stop_on)),
        progress_(STDERR_FILENO, !output.json()) {
    interrupts_.SetAction([this](int signal) {
      if (lets_go_ && LetGo(signal)) return;
      {
        absl::MutexLock lock(&mutex_);
        missed_ = signal;  // for the job, if it starts all the same
      }
      client_.Cancel();
    });
  }
  ~JobSession() { interrupts_.SetAction(nullptr); }

  void OnEvent(const v1::JobEvent& event) {
    switch (event.event_case()) {
      case v1::JobEvent::kProgress:
        progress_.Update(event.progress());
        break;
      case v1::JobEvent::kStarted:
        progress_.Clear();
        OnStarted(event.started());
        break;
      case v1::JobEvent::kExited:
        OnExited(event.exited());
        break;
      case v1::JobEvent::kRestarted:
        OnRestarted(event.restarted());
        break;
      case v1::JobEvent::kTimeline:
        if (timelines_ != nullptr) timelines_->Add(event.timeline());
        break;
      case v1::JobEvent::kRolledBack:
        progress_.Clear();
        OnRolledBack(event.rolled_back());
        break;
      case v1::JobEvent::kImagesMissing:
        OnImagesMissing(event.images_missing());
        break;
      case v1::JobEvent::kCopies:
        OnCopies(event.copies());
        break;
      case v1::JobEvent::kWaits:
        output_.Json(event.waits());
        waits_told_ = true;
        output_.Warning(
            absl::StrCat("the job can't be brought back yet, which is tried again: ", event.waits().why()));
        break;
      case v1::JobEvent::kWarning:
        output_.Json(event.warning());
        output_.Warning(absl::StrCat("of the job: ", event.warning().warning()));
        break;
      case v1::JobEvent::EVENT_NOT_SET:
        break;
    }
  }

  // Nothing is to be started: what was done with files is the result.
  void SetDryRun() { dry_run_ = true; }
  void Follow(Timelines* timelines) { timelines_ = timelines; }

  // `status`: of the call that started the job, or attached to it. Where that ended because the daemon has
  // gone, the job has not.
  int Finish(absl::Status status) {
    progress_.Clear();
    if (absl::IsUnavailable(status) && client_.AtDaemon() && !detach_ && started_)
      status = StayWithJob(status);
    const bool all_shown = EndOutput();
    if (status.ok() && started_ && !detach_ && exits_.empty()) {
      status = absl::CancelledError(absl::StrCat("interrupted just as the job started (PID ",
                                                 started_->job().pid(),
                                                 "): it was sent the signal; see 'rekindle ps'"));
    }
    if (absl::IsCancelled(status) && started_ && detach_) {
      status = absl::CancelledError(
          "interrupted: the copies that have been named run on ('rekindle ps'), others are ended again");
    }
    if (absl::IsCancelled(status) && HungUp() && started_) {
      status = absl::CancelledError(absl::StrCat("hung up: the job runs on, and 'rekindle attach ",
                                                 started_->job().name(), "' follows it again"));
    }
    if (!status.ok()) return output_.Fail(status);
    if (const std::optional<int> stopped = EndWithImage()) return *stopped;
    int code = kDone;
    for (const v1::JobExit& exit : ExitsByNumber()) {
      if (!exit.report().empty()) output_.Warning(absl::StrCat("the job was given up: ", exit.report()));
      if (code == kDone) code = exit.signal() != 0 ? kKilledBySignal + exit.signal() : exit.exit_code();
    }
    // What reads cut output must not take it for all of it.
    return code == kDone && !all_shown ? kFailed : code;
  }

  const std::optional<v1::JobStarted>& started() const { return started_; }
  // Of several copies, each.
  const std::vector<v1::JobStarted>& all_started() const { return all_started_; }

 private:
  bool LetGo(int signal) {
    if (signal != SIGHUP || StopsOn(signal)) return false;
    {
      absl::MutexLock lock(&mutex_);
      hung_up_ = left_ = true;
    }
    client_.Cancel();
    return true;
  }

  // False: some of the job's output was not shown.
  bool EndOutput() {
    if (!follower_) return true;
    const absl::Status shown = follower_->Finish();
    if (!shown.ok()) {
      output_.Warning(absl::StrCat("the job's output was not shown further: ", shown.message(),
                                   "; all of it is in ", LogOf(started_->job())));
    }
    return shown.ok();
  }

  bool HungUp() {
    absl::MutexLock lock(&mutex_);
    return hung_up_;
  }

  void OnExited(const v1::JobExit& exit) {
    output_.Json(exit);
    exits_.push_back(exit);
    // What may still be waited for without a daemon is the copy of its last image.
    if (started_ && started_->job().has_supervised())
      interrupts_.SetAction([this](int) { client_.Cancel(); });
  }

  // Of several copies, the first one's first: they end in any order, and not even start in theirs.
  std::vector<v1::JobExit> ExitsByNumber() const {
    std::map<std::string, uint32_t> numbers;
    for (const v1::JobStarted& started : all_started_) numbers[started.instance()] = started.number();
    std::vector<v1::JobExit> exits = exits_;
    std::stable_sort(exits.begin(), exits.end(), [&](const v1::JobExit& a, const v1::JobExit& b) {
      return numbers[a.instance()] < numbers[b.instance()];
    });
    return exits;
  }

  void OnRolledBack(const v1::FilesRolledBack& files) {
    output_.Json(files);
    const std::string table = RollbackTable(files.files(), dry_run_);
    if (dry_run_) {
      output_.Text(table.empty() ? "the image knows of no files that the job writes\n" : table);
    } else if (!table.empty() && !output_.json()) {
      output_.Note(table);
    }
  }

  void OnStarted(const v1::JobStarted& started) {
    started_ = started;
    all_started_.push_back(started);
    for (const std::string& line : started.command_lines()) output_.CommandLine(line);
    for (const std::string& warning : started.warnings()) output_.Warning(warning);
    TellStarted(started);
    if (detach_) return;
    const std::string supervised = started.job().has_supervised() ? started.job().name() : "";
    int missed = 0;  // came before this one could get it
    {
      absl::MutexLock lock(&mutex_);
      if (supervised.empty()) {
        locals_[started.job().pid()] = LocalJob::Find(started);
        missed = signal_;
      } else {
        ++attached_;
        pids_.clear();  // attached again, it may have another
        missed = std::exchange(signal_, 0);
        signal_since_told_ = false;
      }
      pids_.push_back(started.job().pid());
    }
    // In this process it would go on without anybody who brings it back.
    const bool lets_go = lets_go_ || (!supervised.empty() && client_.AtDaemon());
    interrupts_.SetAction([this, supervised, lets_go](int signal) {
      if (lets_go && LetGo(signal)) return;
      if (!supervised.empty()) return SignalSupervised(supervised, signal);
      std::vector<int> pids;
      {
        absl::MutexLock lock(&mutex_);
        pids = pids_;
        signal_ = signal;
      }
      for (const int pid : pids) Signal(pid, signal).IgnoreError();  // it may just have ended
    });
    // Only now: from here on nothing more is missed.
    {
      absl::MutexLock lock(&mutex_);
      if (missed_ != 0) missed = std::exchange(missed_, 0);
      if (supervised.empty() && signal_ == 0) signal_ = missed;  // for copies that come later
    }
    if (missed != 0 && supervised.empty()) Signal(started.job().pid(), missed).IgnoreError();
    if (missed != 0 && !supervised.empty()) SignalSupervised(supervised, missed);
    // Copies have one log for all.
    if (follower_ || !follow_log_ || output_.json()) return;
    if (started.job().log().empty()) return TellOutput(started.job().output());
    absl::StatusOr<std::unique_ptr<LogFollower>> follower =
        LogFollower::Start(LogOf(started.job()), LogOffset(started), STDOUT_FILENO);
    if (follower.ok()) {
      follower_ = *std::move(follower);
    } else {
      output_.Warning(absl::StrCat("the job's output can't be shown: ", follower.status().message()));
    }
  }

  // Of one that it was attached to, the end that the log has now.
  static uint64_t LogOffset(const v1::JobStarted& started) {
    struct stat info;
    if (started.log_offset() != UINT64_MAX || ::stat(LogOf(started.job()).c_str(), &info) != 0)
      return started.log_offset();
    return static_cast<uint64_t>(info.st_size);
  }

  void TellStarted(const v1::JobStarted& started) const {
    if (!output_.json()) return;
    v1::JobStarted told = started;
    told.set_log_offset(LogOffset(started));
    output_.Json(told);
  }

  // What goes to a file that the job had open is not shown, and the user may wait for it here.
  void TellOutput(const std::string& file) {
    if (file.empty() || file == std::exchange(told_output_, file)) return;
    output_.Note(absl::StrCat("rekindle: its output goes to ", file, "\n"));
  }

  absl::Status Signal(int pid, int signal) {
    v1::SignalJobRequest request;
    request.set_pid(pid);
    request.set_signal(signal);
    request.set_group(true);
    absl::Status sent = client_.SignalJob(request);
    if (sent.ok()) return sent;
    std::shared_ptr<const LocalJob> local = LocalOf(pid);
    return local != nullptr && local->Signal(signal) ? absl::OkStatus() : sent;
  }

  void SignalSupervised(const std::string& name, int signal) {
    for (;;) {
      std::vector<int> pids;
      uint64_t attached;
      {
        absl::MutexLock lock(&mutex_);
        pids = pids_;
        attached = attached_;
      }
      absl::Status sent;
      if (StopsOn(signal)) {
        sent = StopWithImage(name, signal);
      } else {
        for (const int pid : pids) sent.Update(Signal(pid, signal));
      }
      if (sent.ok()) return;
      if (!absl::IsUnavailable(sent)) {
        // Between two lives there is nobody who could take a signal.
        v1::StopJobRequest stop;
        stop.set_job(name);
        if (!absl::IsUnavailable(client_.StopJob(stop).status())) return;
      }
      // Without the daemon it would be taken for a failure, after which the job is brought back.
      absl::MutexLock lock(&mutex_);
      if (attached_ != attached) continue;  // it came back meanwhile: nobody else would pass this one on
      if (signal_since_told_) left_ = true;
      signal_since_told_ = true;
      signal_ = signal;
      return;
    }
  }

  bool StopsOn(int signal) const {
    return std::find(stop_on_.begin(), stop_on_.end(), signal) != stop_on_.end();
  }

  // OK also where no image could be taken, which is told: the job runs on then. Unavailable: nobody was
  // asked.
  absl::Status StopWithImage(const std::string& name, int signal) {
    v1::StopJobRequest stop;
    stop.set_job(name);
    stop.set_checkpoint(true);
    absl::StatusOr<v1::StopJobResponse> stopped = client_.StopJob(stop);
    if (absl::IsUnavailable(stopped.status())) return stopped.status();
    if (!stopped.ok()) {
      output_.Warning(absl::StrCat(NameOfSignal(signal),
                                   " was to end the job with a last image: ", stopped.status().message()));
      return absl::OkStatus();
    }
    absl::MutexLock lock(&mutex_);
    stopped_by_ = signal;
    stopped_ = *std::move(stopped);
    return absl::OkStatus();
  }

  // The exit status of one that a signal has ended with a last image.
  std::optional<int> EndWithImage() {
    absl::MutexLock lock(&mutex_);
    if (stopped_by_ == 0) return std::nullopt;
    output_.Json(stopped_);
    output_.Note(absl::StrCat("rekindle: ", NameOfSignal(stopped_by_),
                              ": the job has ended, its last image is ", stopped_.image(), "\n"));
    return kKilledBySignal + stopped_by_;
  }

  std::shared_ptr<const LocalJob> LocalOf(int pid) {
    absl::MutexLock lock(&mutex_);
    auto found = locals_.find(pid);
    return found == locals_.end() ? nullptr : found->second;
  }

  // Until the job has ended. `lost`: why the call that followed it has ended; returned where it can't be
  // followed without the daemon.
  absl::Status StayWithJob(const absl::Status& lost) {
    return started_->job().has_supervised() ? AttachAgain(lost) : AwaitLocalJobs(lost);
  }

  absl::Status AwaitLocalJobs(const absl::Status& lost) {
    std::set<std::pair<int, std::string>> ended;
    for (const v1::JobExit& exit : exits_) ended.emplace(exit.pid(), exit.instance());
    std::vector<std::pair<const v1::JobStarted*, std::shared_ptr<const LocalJob>>> jobs;
    for (const v1::JobStarted& started : all_started_) {
      if (ended.count({started.job().pid(), started.instance()}) != 0) continue;
      jobs.emplace_back(&started, LocalOf(started.job().pid()));
      if (jobs.back().second == nullptr) return lost;
    }
    output_.Note("rekindle: the daemon has gone. The job runs on, and this command waits for its end\n");
    for (const auto& [started, job] : jobs) {
      const std::optional<ExitState> end = job->AwaitEnd();
      v1::JobExit exit;
      exit.set_pid(started->job().pid());
      exit.set_instance(started->instance());
      exit.set_exit_code(end ? end->code : kUnknownEnd);
      if (end) exit.set_signal(end->signal);
      OnExited(exit);
      if (end) continue;
      output_.Warning(
          absl::StrCat("the job ended while its daemon was gone, and this kernel does not tell how (6.15 and "
                       "newer do): status ",
                       kUnknownEnd, " stands for that"));
    }
    return absl::OkStatus();
  }

  absl::Status AttachAgain(absl::Status lost) {
    v1::AttachJobRequest request;
    request.set_job(started_->job().name());
    for (bool tell = true; absl::IsUnavailable(lost);) {
      if (tell) {
        {
          // One whose answer went with the daemon is none that the user has sent since.
          absl::MutexLock lock(&mutex_);
          signal_since_told_ = false;
        }
        output_.Note(
            "rekindle: the daemon has gone. This command waits until it is back, and passes on a signal "
            "then; a second one ends it\n");
      }
      if (!PauseForDaemon()) {
        return absl::CancelledError(absl::StrCat("interrupted. Once a daemon runs, 'rekindle attach ",
                                                 request.job(), "' follows the job and 'rekindle stop ",
                                                 request.job(), "' ends it"));
      }
      const size_t starts = all_started_.size();
      lost = client_.AttachJob(request, [this](const v1::JobEvent& event) { OnEvent(event); });
      tell = all_started_.size() > starts;  // it was back, and has gone again
    }
    return lost;
  }

  // False: the user waits no longer.
  bool PauseForDaemon() {
    {
      absl::MutexLock lock(&mutex_);
      if (AwaitUntil(mutex_, absl::Condition(&left_), Deadline(kBetweenAttempts))) return false;
    }
    // A call would fail at once, and a connection of which nobody waits for anything is looked at every few
    // seconds only.
    client_.AwaitConnection(kBetweenAttempts);
    return true;
  }

  void OnRestarted(const v1::JobRestarted& restarted) {
    {
      absl::MutexLock lock(&mutex_);
      pids_ = {restarted.pid()};
    }
    output_.Json(restarted);
    for (const std::string& image : restarted.passed_over())
      output_.Warning(absl::StrCat("the job could not be brought back from ", image));
    // Of a daemon that does not tell at once.
    if (!restarted.hindered_by().empty() && !waits_told_)
      output_.Warning(absl::StrCat("the job could not be brought back at once: ", restarted.hindered_by()));
    waits_told_ = false;
    for (const v1::FileRollback& file : restarted.files()) {
      if (file.action() == v1::FileRollback::LEFT)
        output_.Warning(absl::StrCat(file.path(), " is left as it is: ", file.why()));
    }
    output_.Note(absl::StrCat("rekindle: the job ended (", restarted.why(), ") and goes on from ",
                              restarted.image().empty() ? "its beginning" : restarted.image(), ": PID ",
                              restarted.pid(), ", restart ", restarted.restart(), ", after ",
                              FormatSeconds(restarted.seconds()), "\n"));
  }

  void OnImagesMissing(const v1::JobImagesMissing& missing) {
    output_.Json(missing);
    if (missing.why().empty()) {
      output_.Note("rekindle: images of the job are taken again\n");
    } else {
      output_.Warning(absl::StrCat("no image was taken of the job, which is tried again: ", missing.why()));
    }
  }

  void OnCopies(const v1::JobCopiesTrouble& copies) {
    output_.Json(copies);
    if (copies.trouble().empty()) {
      output_.Note(absl::StrCat("rekindle: images of the job are copied to ", copies.place(), " again\n"));
    } else {
      output_.Warning(copies.trouble());
    }
  }

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
  int stopped_by_ ABSL_GUARDED_BY(mutex_) = 0;  // the signal that has ended it with a last image
  v1::StopJobResponse stopped_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const LocalJob>> locals_ ABSL_GUARDED_BY(mutex_);  // by PID
  bool dry_run_ = false;
  ProgressBar progress_;
  std::optional<v1::JobStarted> started_;
  std::vector<v1::JobStarted> all_started_;
  std::vector<v1::JobExit> exits_;  // as they came
  std::unique_ptr<LogFollower> follower_;
  std::string told_output_;
  Timelines* timelines_ = nullptr;
};

void PrintCheckpoint(const Output& output, const v1::CheckpointResult& result, bool stopped) {
  const v1::Image& image = result.image();
  const uint64_t logical = image.logical_bytes();
  const uint64_t saved = image.zero_bytes() + image.parent_bytes() + image.shared_bytes();
  std::string text = absl::StrCat(
      image.reference(), "  ", image.digest().substr(0, 19), "\n", "  frozen        ",
      FormatSeconds(result.freeze_seconds()), "  (the job stood still)\n", "  committed     ",
      FormatSeconds(result.commit_seconds()), "  (hashed, compressed and written ",
      stopped ? "before it was ended)\n" : "while it ran)\n", "  memory        ", FormatBytes(logical),
      " in ", result.processes(), result.processes() == 1 ? " process, " : " processes, ", result.threads(),
      result.threads() == 1 ? " thread\n" : " threads\n", "  deduplicated  ", Percent(saved, logical),
      "  (zero ", FormatBytes(image.zero_bytes()), ", as in the parent ", FormatBytes(image.parent_bytes()),
      ", elsewhere ", FormatBytes(image.shared_bytes()), ")\n", "  new           ",
      FormatBytes(image.new_bytes()), ", stored as ", FormatBytes(image.stored_bytes()), "\n");
  if (result.gpu_bytes() > 0) {
    absl::StrAppend(&text, "  GPU memory    ", FormatBytes(result.gpu_bytes()), " of the memory\n");
  }
  output.Text(text);
}

// Where what the job writes is found, after a separator; empty: in no file.
std::string PlaceOfOutput(absl::string_view separator, const v1::Job& job) {
  if (!job.log().empty()) return absl::StrCat(separator, "log ", job.log());
  return job.output().empty() ? "" : absl::StrCat(separator, "its output goes to ", job.output());
}

void PrintJob(const Output& output, const v1::Job& job) {
  output.Text(absl::StrCat("PID ", job.pid(), "  name ", job.name(), PlaceOfOutput("  ", job), "\n"));
}

void PrintStarted(const Output& output, const v1::JobStarted& started, absl::string_view how) {
  const v1::Job& job = started.job();
  output.Text(absl::StrCat(
      job.image(), started.instance().empty() ? " runs again: PID " : " runs: PID ", job.pid(), ", ",
      job.processes(), job.processes() == 1 ? " process, " : " processes, ",
      started.forked() ? "forked" : std::string(how), " in ", FormatSeconds(started.seconds()),
      started.ready_seconds() > 0 ? absl::StrCat(", answered after ", FormatSeconds(started.ready_seconds()))
                                  : "",
      PlaceOfOutput(", ", job), "\n"));
}

// With how it ended, as far as that is known.
std::string StateWithEnd(const v1::Job& job) {
  if (job.state() != "exited") return job.state();
  if (job.has_signal()) return absl::StrCat("killed (", NameOfSignal(job.signal()), ")");
  return job.has_exit_code() ? absl::StrCat("exited (", job.exit_code(), ")") : job.state();
}

// What comes, or may still come, from a pipe or a socket.
enum class PipedInput { kNone, kMayCome, kIsThere };
PipedInput LookAtPipe(int fd, const struct stat& info) {
  if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) return PipedInput::kNone;
  pollfd entry{fd, POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) return PipedInput::kMayCome;
  int bytes = 0;
  if (::ioctl(fd, FIONREAD, &bytes) != 0) return PipedInput::kMayCome;
  if (bytes > 0) return PipedInput::kIsThere;
  const bool open = S_ISFIFO(info.st_mode) && (entry.revents & (POLLHUP | POLLERR)) == 0;
  return open ? PipedInput::kMayCome : PipedInput::kNone;
}

}  // namespace

int RunJob(Client& client, absl::string_view host, const GlobalOptions& globals, const Output& output,
           Interrupts& interrupts, const v1::RunRequest& request, const RunOptions& options) {
  JobSession session(client, output, interrupts, request.detach(), /*follow_log=*/true, /*lets_go=*/false,
                     options.stop_on);
  v1::RunRequest complete = request;
  struct stat input;
  const bool has_input = ::fstat(STDIN_FILENO, &input) == 0;
  if (has_input && S_ISREG(input.st_mode)) complete.set_stdin_fd(STDIN_FILENO);
  const bool supervised = request.has_supervision();
  switch (has_input ? LookAtPipe(STDIN_FILENO, input) : PipedInput::kNone) {
    case PipedInput::kIsThere:
      if (!supervised) {
        output.Warning(
            "something comes from the pipe that is the standard input, and a job does not get it: it reads "
            "/dev/null. Give it a file (< FILE)");
        break;
      }
      return session.Finish(absl::InvalidArgumentError(
          "something comes from the pipe that is the standard input, and what a supervised job has read from "
          "one would not come again when it is brought back: write it to a file and give it that (< FILE), "
          "or "
          "nothing (< /dev/null)"));
    case PipedInput::kMayCome:  // as in a shell over ssh, where mostly nothing does
      if (supervised)
        output.Warning("the standard input is a pipe, which a supervised job can't have: it reads /dev/null");
      break;
    case PipedInput::kNone:
      break;
  }
  const auto on_event = [&](const v1::JobEvent& event) { session.OnEvent(event); };
  if (options.resume) {
    const absl::StatusOr<std::optional<v1::Job>> runs = JobThatRuns(client, host, request.name());
    if (!runs.ok()) return session.Finish(runs.status());
    if (*runs) {
      output.Note(absl::StrCat("rekindle: job '", request.name(), "' runs already\n"));
      if (request.detach()) {
        v1::JobStarted started;
        *started.mutable_job() = **runs;
        output.Json(started);
        PrintJob(output, **runs);
        return kDone;
      }
      v1::AttachJobRequest attach;
      attach.set_job(request.name());
      return session.Finish(client.AttachJob(attach, on_event));
    }
    const absl::StatusOr<std::string> how = GoOnFromNewest(client, host, globals, &complete);
    if (!how.ok()) return session.Finish(how.status());
    output.Note(absl::StrCat("rekindle: ", *how, "\n"));
  }
  const int code = session.Finish(client.Run(complete, on_event));
  if (request.detach() && session.started() && code == kDone) PrintJob(output, session.started()->job());
  return code;
}

int AttachJob(Client& client, const Output& output, Interrupts& interrupts,
              const v1::AttachJobRequest& request) {
  // In this process it would go on without anybody who brings it back.
  JobSession session(client, output, interrupts, /*detach=*/false, /*follow_log=*/true,
                     /*lets_go=*/client.AtDaemon());
  return session.Finish(
      client.AttachJob(request, [&](const v1::JobEvent& event) { session.OnEvent(event); }));
}

int StopJob(Client& client, const Output& output, const v1::StopJobRequest& request) {
  absl::StatusOr<v1::StopJobResponse> response = client.StopJob(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const v1::JobExit& exit = response->exited();
  std::string how;  // not known where nobody waited for it
  if (exit.signal() != 0) {
    how = absl::StrCat(": killed by signal ", exit.signal());
  } else if (response->has_exited()) {
    how = absl::StrCat(": exit status ", exit.exit_code());
  }
  output.Text(
      absl::StrCat(request.job().empty() ? absl::StrCat(request.pid()) : request.job(), " has ended", how,
                   response->image().empty() ? "" : absl::StrCat(", last image ", response->image()), "\n"));
  return kDone;
}

int RestoreJob(Client& client, const Output& output, Interrupts& interrupts,
               const v1::RestoreRequest& request, const TimelineOptions& timeline) {
  auto timelines = Timelines::Prepare(output, timeline, std::max<size_t>(request.clone().count(), 1));
  if (!timelines.ok()) return output.Fail(timelines.status());
  v1::RestoreRequest complete = request;
  complete.set_timeline(timeline.wanted());
  if (!request.detach() && request.log().empty()) {
    // With --json standard output is for that alone.
    const int job_output = output.json() ? STDERR_FILENO : STDOUT_FILENO;
    for (int fd : {STDIN_FILENO, job_output, STDERR_FILENO}) complete.add_stdio_fds(fd);
  }
  JobSession session(client, output, interrupts, request.detach(), /*follow_log=*/true);
  session.Follow(&*timelines);
  if (request.rollback().dry_run()) session.SetDryRun();
  absl::Status status = client.Restore(complete, [&](const v1::JobEvent& event) { session.OnEvent(event); });
  timelines->Use();
  const int code = session.Finish(status);
  if (request.detach()) {
    for (const v1::JobStarted& started : session.all_started()) PrintStarted(output, started, "restored");
  }
  return code;
}

int StartFromTemplate(Client& client, const Output& output, Interrupts& interrupts,
                      const v1::StartFromTemplateRequest& request, const TimelineOptions& timeline) {
  auto timelines = Timelines::Prepare(output, timeline, std::max<size_t>(request.clone().count(), 1));
  if (!timelines.ok()) return output.Fail(timelines.status());
  v1::StartFromTemplateRequest complete = request;
  complete.set_timeline(timeline.wanted());
  JobSession session(client, output, interrupts, request.detach(), /*follow_log=*/false);
  session.Follow(&*timelines);
  absl::Status status =
      client.StartFromTemplate(complete, [&](const v1::JobEvent& event) { session.OnEvent(event); });
  timelines->Use();
  const int code = session.Finish(status);
  if (request.detach()) {
    for (const v1::JobStarted& started : session.all_started()) PrintStarted(output, started, "started");
  }
  return code;
}

int Checkpoint(Client& client, const Output& output, Interrupts& interrupts,
               const v1::CheckpointRequest& request) {
  interrupts.SetAction([&client](int) { client.Cancel(); });
  ProgressBar progress(STDERR_FILENO, !output.json());
  std::optional<v1::CheckpointResult> result;
  absl::Status status = client.Checkpoint(request, [&](const v1::CheckpointEvent& event) {
    if (event.has_progress()) progress.Update(event.progress());
    if (event.has_result()) result = event.result();
  });
  interrupts.SetAction(nullptr);
  progress.Clear();
  if (!status.ok()) return output.Fail(status);
  if (!result) return output.Fail(absl::InternalError("the service ended the checkpoint without a result"));
  for (const std::string& line : result->command_lines()) output.CommandLine(line);
  for (const std::string& warning : result->warnings()) output.Warning(warning);
  output.Json(*result);
  PrintCheckpoint(output, *result, request.stop());
  return kDone;
}

int ListJobs(Client& client, const Output& output, const v1::ListJobsRequest& request) {
  absl::StatusOr<v1::ListJobsResponse> response = client.ListJobs(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const auto any = [&](auto has) {
    return std::any_of(response->jobs().begin(), response->jobs().end(), has);
  };
  const bool steps = any([](const v1::Job& job) { return job.has_progress(); });
  const bool restarts = any([](const v1::Job& job) { return job.has_supervised(); });
  const bool copies = any([](const v1::Job& job) { return job.copies_size() > 0; });
  std::vector<Table::Column> columns = {{"PID", Align::kRight}, {"NAME"}, {"STATE"}, {"STARTED"}};
  if (steps) columns.push_back({"STEP", Align::kRight});
  if (restarts) columns.push_back({"RESTARTS", Align::kRight});
  if (copies) columns.push_back({"COPIED", Align::kRight});
  for (Table::Column column :
       {Table::Column{"PROCESSES", Align::kRight}, Table::Column{"MEMORY", Align::kRight},
        Table::Column{"IMAGE"}, Table::Column{"COMMAND"}}) {
    columns.push_back(std::move(column));
  }
  Table table(std::move(columns));
  const int64_t now = UnixNanos();
  std::string failures;
  for (const v1::Job& job : response->jobs()) {
    const std::vector<std::string> failure = FailureLines(job);
    for (const std::string& line : failure) {
      absl::StrAppend(&failures, Shown(line, kLongestRemark), "\n");
    }
    for (const std::string& line : CopyTroubles(job)) {
      absl::StrAppend(&failures, Shown(line, kLongestRemark), "\n");
    }
    if (!failure.empty() && !job.log().empty()) {
      absl::StrAppend(&failures, Shown(absl::StrCat(job.name(), ": its output is in ", job.log()), PATH_MAX),
                      "\n");
    }
    std::vector<std::string> row = {absl::StrCat(job.pid()), job.name(),
                                    failure.empty() ? StateWithEnd(job) : job.supervised().phase(),
                                    Age(job.started_unix_ns(), now)};
    if (steps) row.push_back(StepText(job));
    if (restarts) row.push_back(RestartsText(job));
    if (copies) row.push_back(CopiedText(job, now));
    for (const std::string& cell : {absl::StrCat(job.processes()), FormatBytes(job.resident_bytes()),
                                    job.image().empty() ? "-" : job.image(), Shown(job.command(), 60)}) {
      row.push_back(cell);
    }
    table.AddRow(std::move(row));
  }
  output.Text(absl::StrCat(table.ToString(), failures.empty() ? "" : "\n", failures));
  return kDone;
}

}  // namespace rekindle::cli
