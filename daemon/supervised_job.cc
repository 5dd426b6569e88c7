#include "daemon/supervised_job.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/timeline.h"
#include "base/utf8.h"
#include "daemon/job_members.h"
#include "daemon/job_start.h"
#include "daemon/proto_conversion.h"
#include "daemon/supervised_record.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::daemon {
namespace {

using supervise::Death;

// A job that comes to further steps after this time has not taken a signal from the command as one to end.
constexpr int64_t kEndsOnPurposeNanos = 300'000'000'000;
// Nor one that reports none, and still runs then: whoever has pressed Ctrl-C looks on, and presses it again;
// at another signal it may have much to write.
constexpr int64_t kEndsQuietlyNanos = 3600'000'000'000;
// Whether whoever waits for something has gone.
constexpr absl::Duration kLookForCaller = absl::Milliseconds(20);
constexpr absl::Duration kLookWhileStopping = absl::Milliseconds(50);

// Not when another process has it by now: as long as there is anything of a session, nobody gets its number.
bool IsStillItsNumber(pid_t pid, uint64_t start_ticks) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  return !stat.ok() || IsSameStart(stat->start_ticks, start_ticks);
}

// What those who follow a job that has ended are told at last.
v1::JobEvent EndOf(const v1::SupervisedJobRecord& record) {
  v1::JobEvent event;
  event.mutable_exited()->set_exit_code(record.exit_code());
  event.mutable_exited()->set_signal(record.signal());
  event.mutable_exited()->set_pid(record.pid());
  if (record.failed()) event.mutable_exited()->set_report(record.report());
  return event;
}

}  // namespace

SupervisedJob::SupervisedJob(Node& node, v1::SupervisedJobRecord record, std::optional<SupervisedHold> hold)
    : node_(node),
      name_(record.name()),
      mark_(record.mark().empty() ? record.name() : record.mark()),
      directory_(SupervisedDirectory(node.options().store)),
      owner_(record.uid()),
      submitted_unix_ns_(record.submitted_unix_ns()),
      first_submitted_unix_ns_(record.first_submitted_unix_ns()),
      ancestors_(record.ancestors()),
      seen_ways_(record.seen()),
      notices_(record.name(), node.options().daemon),
      restart_policy_(RestartOptionsOf(record.policy()), RestartStateOf(record)),
      interval_(IntervalOptionsOf(record.policy()), IntervalStateOf(record)),
      progress_(record.policy().hang_seconds(), record.policy().hang_sign() == v1::Supervision::OUTPUT
                                                    ? supervise::ProgressSign::kOutput
                                                    : supervise::ProgressSign::kAny),
      removed_(RemovedFilesOf(record)),
      seen_(node.options().runtime_directory, mark_),
      hold_(std::move(hold)),
      record_(std::move(record)),
      end_told_(record_.ended()),
      settled_(!hold_.has_value()) {
  if (!hold_.has_value()) return;
  record_.set_machine(ThisMachineId());
  record_.set_host(ThisHostName());
}

SupervisedJob::~SupervisedJob() { Leave(); }

std::string SupervisedJob::JobFilePath() const {
  return JobFile::PathOf(node_.options().runtime_directory, mark_);
}

std::string SupervisedJob::MarkVariable() const {
  return absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "=", JobFilePath());
}

Call SupervisedJob::OwnCall() const {
  absl::MutexLock lock(&mutex_);
  Call call;
  call.caller.kind = Caller::Kind::kLocal;
  GetOwner(record_, &call.caller);
  call.cancelled = [this] { return cancel_image_.load(); };
  return call;
}

std::optional<RunAs> SupervisedJob::User() const { return Node::UserOf(OwnCall().caller); }

absl::Status SupervisedJob::WriteRecord() {
  absl::MutexLock writing(&writing_);
  if (!hold_) return absl::OkStatus();
  v1::SupervisedJobRecord record;
  {
    absl::MutexLock lock(&mutex_);
    SetRestartState(restart_policy_.state(), &record_);
    SetIntervalState(interval_.state(), &record_);
    record = record_;
  }
  RK_RETURN_IF_ERROR(
      Annotate(node_.CheckStoreIsThere(), absl::StrCat("job '", name_, "' can't be recorded")));
  RK_RETURN_IF_ERROR(WriteSupervisedRecord(directory_, record));
  if (record.ended()) {
    hold_.reset();
    absl::MutexLock lock(&mutex_);
    settled_ = true;
  }
  return absl::OkStatus();
}

void SupervisedJob::Save() {
  const absl::Status saved = WriteRecord();
  unsaved_ = !saved.ok();
  if (!saved.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat(saved.message(), "; a daemon that starts now would not know it as it is"));
  }
}

void SupervisedJob::SetPhase(const char* phase) {
  absl::MutexLock lock(&mutex_);
  phase_ = phase;
}

void SupervisedJob::OpenJobFile() {
  gid_t gid;
  {
    absl::MutexLock lock(&mutex_);
    gid = record_.gid();
  }
  absl::StatusOr<JobFile> file = JobFile::Create(JobFilePath(), owner_, gid);
  if (!file.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("job '", name_, "' can't report progress: ", file.status().message()));
    job_file_.reset();
    return;
  }
  job_file_.emplace(*std::move(file));
  told_of_wishes_ = job_file_->OnChange([wakeup = wakeup_] { wakeup->Notify(); });
}

void SupervisedJob::RemoveJobFile() {
  // One that runs from an image of it reports there too.
  for (const JobRecord& job : OtherJobs().value_or(std::vector<JobRecord>())) {
    if (job.mark == mark_ && job.instance.empty()) return;
  }
  if (absl::Status removed = RemoveTree(JobFilePath()); !removed.ok())
    Log(LogLevel::kDebug, removed.message());
}

LaunchOptions SupervisedJob::LaunchPlan() const {
  LaunchOptions launch;
  launch.run_as = User();
  absl::MutexLock lock(&mutex_);
  launch.argv.assign(record_.argv().begin(), record_.argv().end());
  for (const std::string& variable : record_.environment()) {
    if (!absl::StartsWith(variable, absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "=")))
      launch.environment.push_back(variable);
  }
  launch.environment.push_back(MarkVariable());
  launch.working_directory = record_.working_directory();
  launch.log = record_.log();
  launch.standard_input = record_.standard_input();
  if (record_.has_settings()) launch.settings = FromProto(record_.settings());
  return launch;
}

absl::StatusOr<RegisteredJob> SupervisedJob::StartFromBeginning(UniqueFd log,
                                                                std::vector<std::string>* warnings) {
  OpenJobFile();
  // A life before may have reported; whether this one does is not known before it has.
  if (job_file_) job_file_->ForgetJob().IgnoreError();
  JobStart start;
  start.launch = LaunchPlan();
  start.launch.log_file = std::move(log);
  start.record.name = name_;
  start.record.command = absl::StrJoin(start.launch.argv, " ");
  start.record.owner = owner_;
  start.record.log = start.launch.log;
  start.record.mark = mark_;
  {
    absl::MutexLock lock(&mutex_);
    record_.set_coming_to_life(true);
    record_.mutable_restarts()->set_decided(false);
    record_.clear_from_image();
    record_.clear_from_number();
    ForgetSignal();
    record_.set_boot_id(ThisBootId());
  }
  const absl::Status recorded = WriteRecord();
  // A full disk must not keep one from coming back that is known already.
  if (start.launch.log_file.valid()) RK_RETURN_IF_ERROR(recorded);
  return StartJob(node_, start, warnings);
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> SupervisedJob::Launch(Node& node,
                                                                     v1::SupervisedJobRecord record,
                                                                     SupervisedHold hold, UniqueFd log,
                                                                     std::vector<std::string>* warnings) {
  std::shared_ptr<SupervisedJob> job(new SupervisedJob(node, std::move(record), std::move(hold)));
  // Of a job that had the name, and ended.
  const EndedRecord before = ReadEndedRecord(job->directory_, job->name_);
  RK_RETURN_IF_ERROR(RemoveFirstImage(job->directory_, job->name_));
  absl::StatusOr<RegisteredJob> started = job->StartFromBeginning(std::move(log), warnings);
  if (started.ok()) job->removed_.ForgetAll();
  return Supervise(std::move(job), std::move(started), before);
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> SupervisedJob::LaunchFromImage(Node& node,
                                                                              v1::SupervisedJobRecord record,
                                                                              SupervisedHold hold,
                                                                              const std::string& log,
                                                                              v1::JobRestarted* restarted) {
  const v1::RestartPoint image = record.points(0);
  std::shared_ptr<SupervisedJob> job(new SupervisedJob(node, std::move(record), std::move(hold)));
  const EndedRecord before = ReadEndedRecord(job->directory_, job->name_);
  RK_RETURN_IF_ERROR(WriteFirstImage(job->directory_, job->name_, image));
  absl::StatusOr<RegisteredJob> started = job->RestoreFrom(image, restarted, /*revival=*/false, log);
  if (started.ok()) {
    absl::MutexLock lock(&job->mutex_);
    job->record_.set_log(started->record.log);
  }
  return Supervise(std::move(job), std::move(started), before);
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> SupervisedJob::Supervise(
    std::shared_ptr<SupervisedJob> job, absl::StatusOr<RegisteredJob> first_life, const EndedRecord& before) {
  if (!first_life.ok()) {
    job->RemoveJobFile();
    job->RemoveRecord(before);
    return first_life.status();
  }
  job->BeginLife(*first_life);
  try {
    job->thread_ = std::thread(&SupervisedJob::Loop, job.get());
  } catch (const std::system_error& error) {
    // Who is told that it was not started must not find it running.
    job->KillAll();
    job->RemoveJobFile();
    job->RemoveRecord(before);
    return NoMoreThreads(error);
  }
  return job;
}

void SupervisedJob::RemoveRecord(const EndedRecord& before) {
  const absl::Status removed = PutBackEndedRecord(directory_, name_, before);
  if (removed.ok()) return;
  Log(LogLevel::kError,
      absl::StrCat("job '", name_, "' was not started, but its record stays, and whoever reads it ",
                   "starts the job: remove ", SupervisedRecordPath(directory_, name_), " (",
                   removed.message(), ")"));
}

std::shared_ptr<SupervisedJob> SupervisedJob::Remember(Node& node, v1::SupervisedJobRecord record) {
  const v1::JobEvent end = EndOf(record);
  std::shared_ptr<SupervisedJob> job(new SupervisedJob(node, std::move(record), std::nullopt));
  job->events().Send(end);
  return job;
}

void SupervisedJob::BeginLife(const RegisteredJob& job) {
  Await(job.end);
  end_unknown_->store(false);
  saw_life_ = true;
  ResetWatch();
  {
    absl::MutexLock lock(&mutex_);
    NoteLife(job.record);
    record_.set_life_began_unix_ns(UnixNanos());
    record_.set_life_began_ns(MonotonicNanos());
    phase_ = "running";
  }
  Save();
  TellOfOtherFolder();
}

void SupervisedJob::Await(std::shared_ptr<const JobEnd> end) {
  end_ = std::move(end);
  end_->OnceSet([wakeup = wakeup_] { wakeup->Notify(); });
}

void SupervisedJob::NoteLife(const JobRecord& life) {
  record_.set_pid(life.pid);
  record_.set_start_ticks(life.start_ticks);
  record_.set_boot_id(life.boot_id);
  record_.set_coming_to_life(false);
  record_.mutable_restarts()->set_decided(false);
  record_.set_image_in_life(false);
  record_.set_images_put_off(0);
  record_.set_numbers_before(record_.last_number());
  record_.set_run_seconds_before(record_.run_seconds());
}

void SupervisedJob::Loop() {
  for (;;) {
    switch (WatchLife()) {
      case Turn::kLeave:
        return;
      case Turn::kStop:
        if (StopLife()) return;
        continue;
      case Turn::kDied:
        break;
    }
    if (!BringBack(TakeDeath())) return;
  }
}

bool SupervisedJob::Wait(double seconds) {
  const Stopwatch waited;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (Wanted()) return false;
    }
    const double left = seconds - waited.seconds();
    if (left <= 0) return true;
    wakeup_->WaitFor(absl::Seconds(left));
  }
}

absl::StatusOr<std::vector<JobRecord>> SupervisedJob::OtherJobs() const {
  RK_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, node_.jobs().List());
  std::erase_if(jobs, [&](const JobRecord& job) { return job.name == name_ || !JobRegistry::Lives(job); });
  return jobs;
}

JobTraits SupervisedJob::Traits(const absl::StatusOr<std::vector<JobRecord>>& others, bool by_mark) const {
  JobTraits traits;
  {
    absl::MutexLock lock(&mutex_);
    if (saw_life_ && IsStillItsNumber(record_.pid(), record_.start_ticks())) traits.session = record_.pid();
    traits.seen = seen_.processes();
  }
  // An administrator's job may have been given to any user, in its image or by itself.
  const Caller owner = OwnCall().caller;
  if (!node_.policy().IsAdmin(owner)) traits.user = owner.uid;
  if (!others.ok()) return traits;
  for (const JobRecord& job : *others) traits.others.push_back(job.pid);
  if (by_mark) traits.mark = MarkVariable();
  return traits;
}

void SupervisedJob::KillAll() {
  const bool over = end_ != nullptr && end_->WaitFor(absl::ZeroDuration());
  const MarkUses::Use ends = node_.mark_uses().End(mark_, name_);
  const absl::StatusOr<std::vector<JobRecord>> others = OtherJobs();
  if (!others.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("job '", name_, "': only its session is ended, since other jobs can't be told from it: ",
                     others.status().message()));
  }
  const JobTraits traits = Traits(others, static_cast<bool>(ends));
  if (const size_t killed = KillJobMembers(traits); killed > 0)
    Log(LogLevel::kInfo, absl::StrCat("job '", name_, "': ", killed, " of its processes ended with it"));
  if (over) saw_life_ = false;
}

absl::Status SupervisedJob::TakeLastImage(std::string* image) {
  // Whoever has asked may ask once: a scheduler kills the job next. Of a large one the image of somebody else
  // takes minutes.
  constexpr double kOthersMayTake = 600;
  const Stopwatch waited;
  for (;;) {
    absl::Status taken = TakeImage(/*asked=*/true, image);
    if (!absl::IsAborted(taken) || waited.seconds() >= kOthersMayTake ||
        end_->WaitFor(absl::ZeroDuration()).has_value()) {
      return taken;
    }
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return record_.stopping() || leave_; };
    if (AwaitUntil(mutex_, absl::Condition(&over), Deadline(absl::Seconds(kBusySeconds)))) return taken;
  }
}

bool SupervisedJob::StopLife() {
  absl::Duration grace;
  bool checkpoint;
  pid_t pid;
  {
    absl::MutexLock lock(&mutex_);
    checkpoint = stop_checkpoint_;
    pid = record_.pid();
  }
  absl::Status taken;
  std::string image;
  if (checkpoint) taken = TakeLastImage(&image);
  {
    absl::MutexLock lock(&mutex_);
    if (!taken.ok()) {
      // An image was asked for, then its end: without the one it does not get the other, unless somebody has
      // asked for its end alone meanwhile.
      if (!record_.stopping()) {
        stop_ = false;
        stop_error_ = taken;
        return false;
      }
      no_stop_image_ = taken;
    }
    if (checkpoint && taken.ok()) {
      stop_image_ = image;
      NoteStop();
    }
    grace = stop_grace_;
  }
  // Before the first signal: with it the stop outlives us.
  Save();
  std::optional<ExitState> exit = end_->WaitFor(absl::ZeroDuration());
  if (!exit) {
    TellToEnd(pid);
    for (const Stopwatch waited; !exit && absl::Seconds(waited.seconds()) < grace;) {
      exit = end_->WaitFor(kLookWhileStopping);
      absl::MutexLock lock(&mutex_);
      if (leave_) return true;  // whoever takes it over ends it
      grace = stop_grace_;      // another call may have less patience
    }
  }
  KillAll();
  if (!exit) exit = end_->WaitFor(absl::Seconds(10));
  Finish(exit.value_or(ExitState{0, SIGKILL}), /*failed=*/false, "it was stopped");
  return true;
}

void SupervisedJob::NoteStop() {
  record_.set_stopping(true);
  record_.set_stop_grace_seconds(absl::ToDoubleSeconds(stop_grace_));
}

void SupervisedJob::Finish(const ExitState& exit, bool failed, const std::string& report) {
  RemoveJobFile();
  seen_.Forget();
  // It is remembered for a day.
  job_file_.reset();
  kept_staging_.Drop();
  if (!failed && exit.code == 0 && exit.signal == 0) {
    removed_.ForgetAll();
  } else {
    ForgetItsFiles(/*ended=*/true);  // somebody may have it go on from an image yet
  }
  v1::JobEvent event;
  {
    absl::MutexLock lock(&mutex_);
    AddRunTime();
    record_.set_ended(true);
    record_.set_failed(failed);
    record_.set_exit_code(exit.code);
    record_.set_signal(exit.signal);
    record_.set_report(report);
    record_.set_ended_unix_ns(UnixNanos());
    event = EndOf(record_);
    record_.set_coming_to_life(false);
    record_.set_stopping(false);
    interval_seconds_ = 0;
    next_checkpoint_unix_ns_ = 0;
    phase_ = "ending";
  }
  Save();
  {
    absl::MutexLock lock(&mutex_);
    end_told_ = true;
  }
  notices_.Tell(event, failed ? LogLevel::kWarning : LogLevel::kInfo,
                absl::StrCat("job '", name_, "' ended for good: ", report));
}

void SupervisedJob::TidyUpEnd() {
  if (!Ended()) return;
  if (thread_.joinable()) thread_.join();
  Save();
}

bool SupervisedJob::EndedBefore(absl::Time time) const {
  absl::MutexLock lock(&mutex_);
  return end_told_ && settled_ && absl::FromUnixNanos(record_.ended_unix_ns()) < time;
}

absl::Time SupervisedJob::EndedAt() const {
  absl::MutexLock lock(&mutex_);
  return absl::FromUnixNanos(record_.ended_unix_ns());
}

void SupervisedJob::ForgetEnded() {
  if (!Ended()) return;
  absl::MutexLock writing(&writing_);
  hold_.reset();
  absl::MutexLock lock(&mutex_);
  settled_ = true;
}

bool SupervisedJob::Ended() const {
  absl::MutexLock lock(&mutex_);
  return end_told_;
}

v1::Job SupervisedJob::Describe(const ProcessChildren* all) const {
  absl::MutexLock lock(&mutex_);
  JobRecord life;
  life.name = name_;
  life.pid = record_.pid();
  life.start_ticks = record_.start_ticks();
  life.boot_id = record_.boot_id();
  life.command = absl::StrJoin(record_.argv(), " ");
  life.owner = owner_;
  life.started_unix_ns = record_.submitted_unix_ns();
  life.log = record_.log();
  if (!record_.points().empty()) life.image = record_.points().rbegin()->image();
  v1::Job job;
  ToProto(life, &job, all);
  if (!record_.ended() && job.state() == "exited") job.set_state("waiting");
  if (end_told_ && record_.signal() != 0) {
    job.set_signal(record_.signal());
  } else if (end_told_) {
    job.set_exit_code(record_.exit_code());
  }
  v1::SupervisedState* state = job.mutable_supervised();
  *state->mutable_policy() = record_.policy();
  state->set_phase(end_told_ ? (record_.failed() ? "failed" : "done") : phase_);
  state->set_restarts(record_.restart_count());
  state->set_attempts(restart_policy_.state().attempts);
  state->set_checkpoints(record_.checkpoint_count());
  state->set_last_freeze_seconds(record_.last_freeze_seconds());
  state->set_total_freeze_seconds(record_.total_freeze_seconds());
  state->set_interval_seconds(interval_seconds_);
  if (!record_.points().empty()) state->set_last_image_unix_ns(record_.points().rbegin()->taken_unix_ns());
  state->set_next_checkpoint_unix_ns(next_checkpoint_unix_ns_);
  state->set_last_error(record_.last_error());
  state->set_report(record_.report());
  state->set_lost_seconds(record_.lost_seconds());
  state->set_run_seconds(record_.run_seconds());
  state->set_stored_bytes(record_.stored_bytes());
  *state->mutable_deaths() = record_.deaths();
  for (const std::string& warning : notices_.warnings()) state->add_warnings(warning);
  return job;
}

std::string SupervisedJob::ImagesName() const {
  const std::string& given = record_.policy().image_name();
  return given.empty() ? ImageNameOf(name_) : given;
}

std::optional<CopyPlan> SupervisedJob::PlanOfCopies() const {
  absl::MutexLock lock(&mutex_);
  // One of another machine that has ended is remembered here, too.
  if (!record_.policy().has_copy_to() || IsOtherMachine(record_.machine())) return std::nullopt;
  return CopyPlanOf(record_, ImagesName());
}

std::pair<std::string, double> SupervisedJob::PeriodOfImages() const {
  absl::MutexLock lock(&mutex_);
  return {ImagesName(), record_.ended() ? 0 : interval_seconds_};
}

std::vector<std::string> SupervisedJob::TrackPaths() const {
  absl::MutexLock lock(&mutex_);
  return {record_.policy().track_paths().begin(), record_.policy().track_paths().end()};
}

bool SupervisedJob::IsNow(pid_t pid) const {
  absl::MutexLock lock(&mutex_);
  return !record_.ended() && record_.pid() == pid;
}

void SupervisedJob::WillEnd(int signal) {
  {
    absl::MutexLock lock(&mutex_);
    if (record_.ended()) return;
    const int64_t now = MonotonicNanos();
    record_.set_will_end_until_ns(now + kEndsOnPurposeNanos);
    record_.set_will_end_quietly_until_ns(
        std::max(record_.will_end_quietly_until_ns(),
                 now + (signal == SIGINT ? kEndsOnPurposeNanos : kEndsQuietlyNanos)));
  }
  Save();
}

void SupervisedJob::ForgetSignal() {
  record_.clear_will_end_until_ns();
  record_.clear_will_end_quietly_until_ns();
}

bool SupervisedJob::MayUseImagesOf(uid_t owner) const {
  return node_.policy().MayUse(OwnCall().caller, owner);
}

void SupervisedJob::AddPoint(v1::RestartPoint point) {
  NotePoint(std::move(point));
  wakeup_->Notify();  // there is something to forget of its removed files
  Save();
}

void SupervisedJob::NotePoint(v1::RestartPoint point) {
  const absl::StatusOr<rekindle_job_file> said = JobFile::ReadAt(JobFilePath());
  absl::MutexLock lock(&mutex_);
  points_.Add(std::move(point), /*silent=*/said.ok() && said->job.calls == 0);
}

std::map<std::string, std::string> SupervisedJob::LabelsOfImage(uint64_t number) const {
  std::map<std::string, std::string> labels = {{v1::kSupervisedLabel, absl::StrCat(submitted_unix_ns_)},
                                               {v1::kSupervisedNumberLabel, absl::StrCat(number)}};
  if (first_submitted_unix_ns_ != 0)
    labels[v1::kSupervisedFirstLabel] = absl::StrCat(first_submitted_unix_ns_);
  if (!ancestors_.empty()) labels[v1::kSupervisedAncestorsLabel] = ancestors_;
  if (!seen_ways_.empty()) labels[v1::kSupervisedSeenLabel] = seen_ways_;
  if (std::string sound = points_.Sound(); !sound.empty())
    labels[v1::kSupervisedSoundLabel] = std::move(sound);
  if (const std::string host = ToUtf8(ThisHostName()); !host.empty()) labels[v1::kSupervisedHostLabel] = host;
  return labels;
}

std::map<std::string, std::string> SupervisedJob::LabelsOfNextImage(uint64_t* number) {
  absl::MutexLock lock(&mutex_);
  *number = points_.NextNumber();
  std::map<std::string, std::string> labels = LabelsOfImage(*number);
  labels[v1::kSupervisedAskedLabel] = "yes";
  return labels;
}

absl::StatusOr<v1::StopJobResponse> SupervisedJob::Stop(absl::Duration grace, bool checkpoint,
                                                        const std::function<bool()>& cancelled) {
  bool had_ended;
  {
    absl::MutexLock lock(&mutex_);
    had_ended = record_.ended();
    stop_ = true;
    stop_grace_ = record_.stopping() ? std::min(stop_grace_, grace) : grace;
    stop_checkpoint_ = checkpoint && !record_.stopping();
    stop_error_ = absl::OkStatus();
    if (!checkpoint && !record_.ended()) NoteStop();
  }
  // What is wanted is its end: it gets no other image, nor another life.
  if (!checkpoint) cancel_image_.store(true);
  wakeup_->Notify();
  // It may be long until the thread comes to it.
  if (!checkpoint) Save();
  constexpr absl::Duration kLookForClient = absl::Milliseconds(200);
  absl::MutexLock lock(&mutex_);
  while (!AwaitUntil(mutex_, absl::Condition(this, &SupervisedJob::StopAnswered), Deadline(kLookForClient))) {
    if (node_.stopping()) {
      return absl::UnavailableError(record_.stopping() ? "rekindled ends; the next one ends the job"
                                                       : "rekindled ends; the job runs on");
    }
    if (cancelled && cancelled())
      return absl::CancelledError("the caller has gone; the job is being stopped");
  }
  RK_RETURN_IF_ERROR(stop_error_);
  if (checkpoint && !had_ended && stop_image_.empty()) {
    RK_RETURN_IF_ERROR(Annotate(no_stop_image_, "another call stopped the job, without an image"));
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has ended, and without a last image: another call stopped it, or it did not run just then",
        record_.points().empty() ? ""
                                 : absl::StrCat("; its newest is ", record_.points().rbegin()->image())));
  }
  v1::StopJobResponse response;
  response.mutable_exited()->set_exit_code(record_.exit_code());
  response.mutable_exited()->set_signal(record_.signal());
  response.mutable_exited()->set_pid(record_.pid());
  response.set_image(stop_image_);
  return response;
}

bool SupervisedJob::HasLife() const {
  const absl::string_view phase = phase_;
  return phase != "waiting" && phase != "restarting";
}

absl::Status SupervisedJob::CheckpointNow(absl::Duration patience) {
  const Stopwatch waited;
  for (;;) {
    const auto left = [&] { return patience - absl::Seconds(waited.seconds()); };
    absl::Status taken = TakeImageWithin(left());
    // Somebody else captures the job, a group say: that image may come to nothing, so ours is taken after it.
    if (!absl::IsAborted(taken) || left() <= absl::ZeroDuration()) return taken;
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return record_.ended() || record_.stopping() || leave_;
    };
    if (AwaitUntil(mutex_, absl::Condition(&over), Deadline(std::min(left(), absl::Seconds(kBusySeconds)))))
      return taken;
  }
}

absl::Status SupervisedJob::TakeImageWithin(absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  if (record_.ended()) return absl::OkStatus();
  const uint64_t mine = ++images_asked_;
  wakeup_->Notify();
  const Stopwatch waited;
  while (images_answered_ < mine && !record_.ended()) {
    if (record_.stopping() || !HasLife()) {
      // Nor is its next life to begin with one.
      images_answered_ = mine;
      last_image_ = absl::FailedPreconditionError(
          record_.stopping()
              ? absl::StrCat("job '", name_, "' is being stopped")
              : absl::StrCat("job '", name_,
                             "' waits to be brought back: it goes on from the image that it has"));
      return last_image_;
    }
    if (node_.stopping()) return absl::UnavailableError("rekindled ends");
    const absl::Duration left = patience - absl::Seconds(waited.seconds());
    if (left <= absl::ZeroDuration())
      return absl::DeadlineExceededError(absl::StrCat("job '", name_, "': the image was not ready in time"));
    AwaitUntil(mutex_, absl::Condition(this, &SupervisedJob::ImagesAnswered),
               Deadline(std::min(left, absl::Seconds(1))));
  }
  return last_image_;
}

void SupervisedJob::AwaitOwnImage(const std::atomic<bool>& cancelled) {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !points_.IsTaking() || leave_; };
  while (!cancelled.load() && !AwaitUntil(mutex_, absl::Condition(&none), Deadline(kLookForCaller))) {
  }
}

absl::Status SupervisedJob::BeginVisit(const std::atomic<bool>& cancelled, uint64_t* number) {
  const auto is_received = [this] {
    absl::MutexLock lock(&mutex_);
    return !Wanted() && !record_.ended() && HasLife();
  };
  return visits_.Begin(is_received, cancelled, number);
}

void SupervisedJob::Leave() {
  bool had_left;
  {
    absl::MutexLock lock(&mutex_);
    had_left = std::exchange(leave_, true);
  }
  wakeup_->Notify();
  cancel_image_.store(true);
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
  if (!had_left) NoteLeftLife();
}

}  // namespace rekindle::daemon
