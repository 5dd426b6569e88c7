#include "cli/job_session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/timed_await.h"
#include "cli/exit_code.h"
#include "cli/logs_command.h"
#include "cli/rollback_table.h"
#include "daemon/job_log.h"

namespace rekindle::cli {
namespace {

constexpr int kKilledBySignal = 128;  // as shells say it
// Of a job that ended while nobody watched it.
constexpr int kUnknownEnd = 255;
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(500);

}  // namespace

std::string NameOfSignal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

const std::vector<int>& SignalsForJobs() {
  static const auto& signals = *new std::vector<int>{SIGUSR1, SIGUSR2};
  return signals;
}

JobSession::JobSession(Client& client, const Output& output, Interrupts& interrupts, bool detach,
                       bool follow_log, bool lets_go, std::vector<int> stop_on)
    : client_(client),
      output_(output),
      interrupts_(interrupts),
      detach_(detach),
      follow_log_(follow_log),
      lets_go_(lets_go),
      stop_on_(std::move(stop_on)),
      progress_(STDERR_FILENO, !output.json()) {
  interrupts_.SetAction([this](int signal) {
    if (IsForJob(signal) || (lets_go_ && LetGo(signal))) return;
    {
      absl::MutexLock lock(&mutex_);
      missed_ = signal;  // for the job, if it starts all the same
    }
    client_.Cancel();
  });
}

void JobSession::OnEvent(const v1::JobEvent& event) {
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

int JobSession::Finish(absl::Status status) {
  progress_.Clear();
  if (absl::IsUnavailable(status) && client_.AtDaemon() && !detach_ && started_) status = StayWithJob(status);
  calls_.AwaitAll();
  const bool all_shown = EndOutput();
  if (status.ok() && started_ && !detach_ && exits_.empty()) {
    status =
        absl::CancelledError(absl::StrCat("interrupted just as the job started (PID ", started_->job().pid(),
                                          "): it was sent the signal; see 'rekindle ps'"));
  }
  if (absl::IsCancelled(status) && started_ && detach_) {
    status = InterruptedLater();
  }
  if (absl::IsCancelled(status) && started_) {
    absl::MutexLock lock(&mutex_);
    const std::string& name = started_->job().name();
    if (hung_up_at_end_) {
      status = absl::CancelledError(
          absl::StrCat("hung up: the job ends with a last image, which 'rekindle ls ", name, ":' shows"));
    } else if (hung_up_) {
      status = absl::CancelledError(
          absl::StrCat("hung up: the job runs on, and 'rekindle attach ", name, "' follows it again"));
    }
  }
  if (!status.ok()) return output_.Fail(status);
  if (const std::optional<int> stopped = EndOfStopped()) return *stopped;
  int code = kDone;
  for (const v1::JobExit& exit : ExitsByNumber()) {
    if (!exit.report().empty()) output_.Warning(absl::StrCat("the job was given up: ", exit.report()));
    if (code == kDone) code = exit.signal() != 0 ? kKilledBySignal + exit.signal() : exit.exit_code();
  }
  if (code != kDone && started_ && !detach_ && !started_->job().has_supervised() && is_here_) {
    const std::string full = daemon::WarnOfFullLog(LogOf(started_->job()), started_->job().owner_uid());
    if (!full.empty()) output_.Warning(absl::StrCat("of the job: ", full));
  }
  // What reads cut output must not take it for all of it.
  return code == kDone && !all_shown ? kFailed : code;
}

absl::Status JobSession::InterruptedLater() const {
  if (!started_->instance().empty()) {
    return absl::CancelledError(
        "interrupted: the copies that have been named run on ('rekindle ps'), others are ended again");
  }
  const v1::Job& job = started_->job();
  return absl::CancelledError(
      absl::StrCat("interrupted: job '", job.name(), "' (PID ", job.pid(), ") runs on",
                   awaits_hold_ ? ", and has not called ready() yet, at which it is held" : "",
                   "; 'rekindle ps' shows it, 'rekindle stop ", job.name(), "' ends it"));
}

bool JobSession::LetGo(int signal) {
  if (signal != SIGHUP || StopsOn(signal)) return false;
  {
    absl::MutexLock lock(&mutex_);
    hung_up_ = left_ = true;
    hung_up_at_end_ = takes_last_image_;
  }
  client_.Cancel();
  return true;
}

bool JobSession::EndOutput() {
  if (!follower_) return true;
  const absl::Status shown = follower_->Finish();
  if (!shown.ok()) {
    output_.Warning(absl::StrCat("the job's output was not shown further: ", shown.message(),
                                 "; all of it is in ", LogOf(started_->job())));
  }
  return shown.ok();
}

void JobSession::OnExited(const v1::JobExit& exit) {
  output_.Json(exit);
  exits_.push_back(exit);
  // What may still be waited for without a daemon is the copy of its last image.
  if (started_ && started_->job().has_supervised()) {
    interrupts_.SetAction([this](int signal) {
      if (!IsForJob(signal)) client_.Cancel();
    });
  }
}

std::vector<v1::JobExit> JobSession::ExitsByNumber() const {
  std::map<std::string, uint32_t> numbers;
  for (const v1::JobStarted& started : all_started_) numbers[started.instance()] = started.number();
  std::vector<v1::JobExit> exits = exits_;
  std::stable_sort(exits.begin(), exits.end(), [&](const v1::JobExit& a, const v1::JobExit& b) {
    return numbers[a.instance()] < numbers[b.instance()];
  });
  return exits;
}

void JobSession::OnRolledBack(const v1::FilesRolledBack& files) {
  output_.Json(files);
  const std::string table = RollbackTable(files.files(), dry_run_);
  if (dry_run_) {
    output_.Text(table.empty() ? "the image knows of no files that the job writes\n" : table);
  } else if (!table.empty() && !output_.json()) {
    output_.Note(table);
  }
}

void JobSession::OnStarted(const v1::JobStarted& started) {
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
    if (!supervised.empty()) return PassOn(supervised, signal);
    std::vector<int> pids;
    {
      absl::MutexLock lock(&mutex_);
      pids = pids_;
      if (!IsForJob(signal)) signal_ = signal;
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
  if (missed != 0 && !supervised.empty()) PassOn(supervised, missed);
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

uint64_t JobSession::LogOffset(const v1::JobStarted& started) {
  struct stat info;
  if (started.log_offset() != UINT64_MAX || ::stat(LogOf(started.job()).c_str(), &info) != 0)
    return started.log_offset();
  return static_cast<uint64_t>(info.st_size);
}

void JobSession::TellStarted(const v1::JobStarted& started) const {
  if (!output_.json()) return;
  v1::JobStarted told = started;
  told.set_log_offset(LogOffset(started));
  output_.Json(told);
}

void JobSession::TellOutput(const std::string& file) {
  if (file.empty() || file == std::exchange(told_output_, file)) return;
  output_.Note(absl::StrCat("rekindle: its output goes to ", file, "\n"));
}

absl::Status JobSession::Signal(int pid, int signal) {
  v1::SignalJobRequest request;
  request.set_pid(pid);
  request.set_signal(signal);
  request.set_group(!IsForJob(signal));
  absl::Status sent = client_.SignalJob(request);
  if (sent.ok()) return sent;
  std::shared_ptr<const LocalJob> local = LocalOf(pid);
  return local != nullptr && local->Signal(signal) ? absl::OkStatus() : sent;
}

void JobSession::PassOn(const std::string& name, int signal) {
  How how = How::kHandOn;
  {
    absl::MutexLock lock(&mutex_);
    if (takes_last_image_ && signal != SIGINT) {
      // It would be in the image, and the job end of it again.
      held_.insert(signal);
      return;
    }
    if (takes_last_image_) {
      how = How::kEndWithoutImage;
      gives_up_image_ = true;
    } else if (StopsOn(signal)) {
      how = How::kEndWithImage;
      takes_last_image_ = true;
    }
  }
  calls_.Begin([this, name, signal, how] { SignalSupervised(name, signal, how); });
}

void JobSession::SignalSupervised(const std::string& name, int signal, How how) {
  for (;;) {
    std::vector<int> pids;
    uint64_t attached;
    {
      absl::MutexLock lock(&mutex_);
      pids = pids_;
      attached = attached_;
    }
    absl::Status sent;
    switch (how) {
      case How::kHandOn:
        for (const int pid : pids) sent.Update(Signal(pid, signal));
        break;
      case How::kEndWithImage:
        sent = StopWithImage(name, signal);
        break;
      case How::kEndWithoutImage:
        sent = StopWithoutImage(name, signal);
        break;
    }
    if (sent.ok() || absl::IsCancelled(sent)) return;
    if (IsForJob(signal) && how == How::kHandOn) {
      output_.Warning(absl::StrCat(NameOfSignal(signal), " was not handed on to the job: ", sent.message()));
      return;
    }
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

bool JobSession::StopsOn(int signal) const {
  return std::find(stop_on_.begin(), stop_on_.end(), signal) != stop_on_.end();
}

bool JobSession::IsForJob(int signal) const {
  const std::vector<int>& signals = SignalsForJobs();
  return !StopsOn(signal) && std::find(signals.begin(), signals.end(), signal) != signals.end();
}

absl::Status JobSession::StopWithImage(const std::string& name, int signal) {
  {
    absl::MutexLock lock(&mutex_);
    takes_last_image_ = true;  // also where it is the second attempt
  }
  output_.Note(absl::StrCat("rekindle: ", NameOfSignal(signal),
                            ": the job ends with a last image; Ctrl-C (SIGINT) ends it without that\n"));
  v1::StopJobRequest stop;
  stop.set_job(name);
  stop.set_checkpoint(true);
  absl::StatusOr<v1::StopJobResponse> stopped = client_.StopJob(stop);
  std::set<int> held;
  {
    absl::MutexLock lock(&mutex_);
    takes_last_image_ = false;
    // It may have come after the one that hangs up.
    if (hung_up_ && (stopped.ok() || absl::IsCancelled(stopped.status()))) hung_up_at_end_ = true;
    if (absl::IsUnavailable(stopped.status())) return stopped.status();
    held.swap(held_);
    if (stopped.ok() && !stopped->image().empty()) NoteStopped(signal, *std::move(stopped));
    // It has ended by itself, or is ended by another signal or without us.
    if (stopped.ok() || gives_up_image_ || absl::IsCancelled(stopped.status())) return absl::OkStatus();
  }
  output_.Warning(absl::StrCat(NameOfSignal(signal),
                               " was to end the job with a last image: ", stopped.status().message()));
  for (const int later : held) PassOn(name, later);
  return absl::OkStatus();
}

absl::Status JobSession::StopWithoutImage(const std::string& name, int signal) {
  v1::StopJobRequest stop;
  stop.set_job(name);
  RK_ASSIGN_OR_RETURN(v1::StopJobResponse stopped, client_.StopJob(stop));
  absl::MutexLock lock(&mutex_);
  NoteStopped(signal, std::move(stopped));
  return absl::OkStatus();
}

void JobSession::NoteStopped(int signal, v1::StopJobResponse stopped) {
  if (stopped_by_ != 0) return;
  stopped_by_ = signal;
  stopped_ = std::move(stopped);
}

std::optional<int> JobSession::EndOfStopped() {
  absl::MutexLock lock(&mutex_);
  if (stopped_by_ == 0) return std::nullopt;
  output_.Json(stopped_);
  output_.Note(absl::StrCat("rekindle: ", NameOfSignal(stopped_by_), ": the job has ended, ",
                            stopped_.image().empty() ? "without a last image"
                                                     : absl::StrCat("its last image is ", stopped_.image()),
                            "\n"));
  return kKilledBySignal + stopped_by_;
}

std::shared_ptr<const LocalJob> JobSession::LocalOf(int pid) {
  absl::MutexLock lock(&mutex_);
  auto found = locals_.find(pid);
  return found == locals_.end() ? nullptr : found->second;
}

absl::Status JobSession::StayWithJob(const absl::Status& lost) {
  return started_->job().has_supervised() ? AttachAgain(lost) : AwaitLocalJobs(lost);
}

absl::Status JobSession::AwaitLocalJobs(const absl::Status& lost) {
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

absl::Status JobSession::AttachAgain(absl::Status lost) {
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

bool JobSession::PauseForDaemon() {
  {
    absl::MutexLock lock(&mutex_);
    if (AwaitUntil(mutex_, absl::Condition(&left_), Deadline(kBetweenAttempts))) return false;
  }
  // A call would fail at once, and a connection of which nobody waits for anything is looked at every few
  // seconds only.
  client_.AwaitConnection(kBetweenAttempts);
  return true;
}

void JobSession::OnRestarted(const v1::JobRestarted& restarted) {
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

void JobSession::OnImagesMissing(const v1::JobImagesMissing& missing) {
  output_.Json(missing);
  if (missing.why().empty()) {
    output_.Note("rekindle: images of the job are taken again\n");
  } else {
    output_.Warning(absl::StrCat("no image was taken of the job, which is tried again: ", missing.why()));
  }
}

void JobSession::OnCopies(const v1::JobCopiesTrouble& copies) {
  output_.Json(copies);
  if (copies.trouble().empty()) {
    output_.Note(absl::StrCat("rekindle: images of the job are copied to ", copies.place(), " again\n"));
  } else {
    output_.Warning(copies.trouble());
  }
}

}  // namespace rekindle::cli
