// A supervised job while it lives: looked at, and images taken of it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timeline.h"
#include "ckpt/capture.h"
#include "daemon/connection_locks.h"
#include "daemon/image_lookup.h"
#include "daemon/image_needs.h"
#include "daemon/job_members.h"
#include "daemon/job_sample.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_job.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"
#include "daemon/thread_time.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store.h"
#include "restore/thread_placement.h"

namespace rekindle::daemon {
namespace {

// How often something is looked at of which nobody tells.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr double kLongestRest = 3600;
// What another job, a template or a function needs is not looked for at each image.
constexpr double kNeededSeconds = 300;
// Threads that waited when their job came back begin to work a little later.
constexpr double kSpreadSeconds = 1;
constexpr double kSampleSeconds = 1;
// To look at a job of thousands of threads takes a while, as it does for hundreds of jobs: it is done so
// seldom that all looks together take this part of a processor at most, but so often that a hang is found in
// time.
constexpr double kMostOfAProcessor = 0.02, kLongestBetweenSamples = 10;
constexpr double kSamplesInAHang = 10;
// The first image of a life is taken soon: until there is one, a failure costs what the last image is behind.
constexpr double kFirstImageSeconds = 5;
// After an image that could not be taken.
constexpr double kImageRetrySeconds = 10;
// After older images have gone for it.
constexpr double kRoomMadeSeconds = 1;
// Images put off while the job may be ending.
constexpr uint32_t kMostPostponements = 10;
// Of one whose process is not there any more.
constexpr absl::Duration kDeathIsTold = absl::Seconds(1);
// A job that knows boundaries is given so long to come to the next one.
constexpr double kBoundaryPatienceSeconds = 20;

// It is the store that has no room, and not the machine that has no memory or descriptors: then the message
// names the cure.
bool RemovingImagesHelps(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && absl::StrContains(status.message(), "`rekindle rm`");
}

// Where no older image of the job can go any more.
absl::Status WithWhatIsKept(const absl::Status& no_room, const std::string& newest) {
  if (newest.empty()) return no_room;
  return WithMessage(
      no_room,
      absl::StrCat(absl::StripSuffix(no_room.message(), "."), ". The newest image of this job, ", newest,
                   ", stays until a newer one is whole, and no other of its images may go: "
                   "beside them there has to be room for what has changed since"));
}

// Jobs of this process that are looked at.
std::atomic<int> watched_lives{0};

class WatchedLife {
 public:
  WatchedLife() { ++watched_lives; }
  ~WatchedLife() { --watched_lives; }
  WatchedLife(const WatchedLife&) = delete;
  WatchedLife& operator=(const WatchedLife&) = delete;
};

std::string ImageTag() { return absl::FormatTime("%Y%m%d-%H%M%E3S", absl::Now(), absl::UTCTimeZone()); }

}  // namespace

void SupervisedJob::ResetWatch() {
  const double now = MonotonicSeconds();
  hung_ = false;
  died_since_ns_ = 0;
  next_sample_ = now;
  counts_run_time_ = true;
  cpu_seconds_ = cpu_sampled_ = cpu_rate_ = 0;
  boundaries_ = wanted_ = 0;
  if (job_file_) {
    if (auto said = job_file_->Read(); said.ok()) {
      last_step_ = said->job.step;
      boundaries_ = said->job.boundaries;
      wanted_ = said->job.wanted;
    }
  }
  image_owed_ = false;
  progress_.Restart(now);
  spread_until_ = now + kSpreadSeconds;
  PlanNextImage(std::min(interval_.Seconds(), kFirstImageSeconds));
}

void SupervisedJob::PlanNextImage(double seconds) {
  absl::MutexLock lock(&mutex_);
  const bool by_interval = record_.policy().every_auto() || record_.policy().every_seconds() > 0;
  const bool comes = by_interval || image_owed_;
  next_image_ = comes ? MonotonicSeconds() + seconds : std::numeric_limits<double>::infinity();
  next_checkpoint_unix_ns_ = comes ? UnixNanos() + static_cast<int64_t>(seconds * 1e9) : 0;
  interval_seconds_ = by_interval ? interval_.Seconds() : 0;
}

void SupervisedJob::AddRunTime() {
  if (!counts_run_time_) return;
  const double life = SecondsOfLife();
  if (!record_.has_run_seconds_before()) record_.set_run_seconds_before(record_.run_seconds() - life);
  // From the life's beginning, so that time without a daemon counts, and what one has counted and not
  // written.
  const double ran = record_.run_seconds_before() + life - record_.run_seconds();
  if (ran <= 0) return;
  interval_.OnRun(ran);
  record_.set_run_seconds(record_.run_seconds() + ran);
}

absl::Duration SupervisedJob::RestOfWatch() const {
  const double now = MonotonicSeconds();
  // What others want and a death are told at once, and mostly what the job wants.
  if (now < spread_until_ || (job_file_ && !told_of_wishes_)) return kTick;
  const double next = hung_ ? next_sample_ : std::min(next_sample_, next_image_);
  return absl::Seconds(std::clamp(next - now, 0.0, kLongestRest));
}

SupervisedJob::Turn SupervisedJob::WatchLife() {
  const WatchedLife watched;
  for (;;) {
    wakeup_->WaitFor(RestOfWatch());
    if (end_->WaitFor(absl::ZeroDuration())) return Turn::kDied;
    bool asked;
    {
      absl::MutexLock lock(&mutex_);
      if (leave_) return Turn::kLeave;
      if (stop_) return Turn::kStop;
      asked = images_asked_ > images_answered_;
    }
    if (visits_.WhichWaits() != 0) {
      KeepItsFiles();
      ReceiveVisit();
      wakeup_->Notify();  // of what else has come
      continue;
    }
    if (HasUnkeptImages()) {
      KeepItsFiles();
      ForgetItsFiles();
    }
    const double now = MonotonicSeconds();
    if (now < spread_until_) SpreadThreads();
    if (now >= next_sample_) {
      LookForProgress(now);
      if (unsaved_) unsaved_ = !WriteRecord().ok();
    }
    if (hung_) continue;
    if (job_file_ && job_file_->WaitForChange(absl::ZeroDuration())) {
      if (const auto wish = NewWish()) {
        wanted_ = *wish;
        asked = true;
      }
    }
    if (!asked && now >= next_image_ && MayBeEnding()) {
      PlanNextImage(kSampleSeconds);
      continue;
    }
    if (asked) image_owed_ = true;
    if (asked || now >= next_image_) TakeImage(asked).IgnoreError();  // noted in the record
  }
}

void SupervisedJob::SpreadThreads() {
  pid_t pid;
  {
    absl::MutexLock lock(&mutex_);
    if (record_.from_image().empty()) return;
    pid = record_.pid();
  }
  restore::SpreadThreads(ProcessTree(pid));
}

bool SupervisedJob::MayBeEnding() {
  pid_t pid;
  {
    absl::MutexLock lock(&mutex_);
    pid = record_.pid();
  }
  const bool killed_child = HasKilledChild(pid);
  uint32_t before, now;
  {
    absl::MutexLock lock(&mutex_);
    before = record_.images_put_off();
    // A parent that never looks after its children does not keep images away, however often daemons change.
    now = killed_child ? std::min(before + 1, kMostPostponements + 1) : 0;
    record_.set_images_put_off(now);
    if (0 < now && now <= kMostPostponements) {
      record_.set_last_error(
          "its image is put off for some seconds: a process of it was killed, and the one that has started "
          "that has not waited for it (wait()), as while a job is about to end. Images come as soon as it "
          "has");
    }
  }
  if (now != before) Save();
  return 0 < now && now <= kMostPostponements;
}

supervise::ProgressSample SupervisedJob::Sample(bool* kept_from_running) {
  pid_t pid;
  std::string log;
  {
    absl::MutexLock lock(&mutex_);
    pid = record_.pid();
    log = record_.log();
  }
  const JobSample used = SampleJob(pid);
  // Of one that has just ended nothing is there; what it has left counts.
  if (!used.processes.empty()) seen_.Note(used.processes);
  if (kept_from_running != nullptr) *kept_from_running = used.stopped || node_.gpus().AreOut(used.pids);
  supervise::ProgressSample sample;
  sample.at_seconds = MonotonicSeconds();
  sample.cpu_seconds = used.cpu_seconds;
  sample.io_bytes = used.io_bytes;
  sample.output_bytes = FileSize(log);
  if (job_file_) {
    if (auto said = job_file_->Read(); said.ok()) {
      sample.reported = said->job.calls;
      last_step_ = said->job.step;
      best_step_ = std::max(best_step_, said->job.step);
    }
  }
  return sample;
}

void SupervisedJob::LookForProgress(double now) {
  double longest = kLongestBetweenSamples;
  {
    absl::MutexLock lock(&mutex_);
    AddRunTime();
    if (const double hang = record_.policy().hang_seconds(); hang > 0)
      longest = std::clamp(hang / kSamplesInAHang, kSampleSeconds, kLongestBetweenSamples);
  }
  bool kept_from_running = false;
  const uint64_t step_before = last_step_;
  const double used_before = ThreadCpuSeconds();
  const supervise::ProgressSample sample = Sample(&kept_from_running);
  const double took = ThreadCpuSeconds() - used_before;
  next_sample_ = now + std::clamp(took * watched_lives / kMostOfAProcessor, kSampleSeconds, longest);
  if (cpu_sampled_ > 0 && now > cpu_sampled_ && sample.cpu_seconds >= cpu_seconds_) {
    const double rate = (sample.cpu_seconds - cpu_seconds_) / (now - cpu_sampled_);
    cpu_rate_ = cpu_rate_ == 0 ? rate : 0.7 * cpu_rate_ + 0.3 * rate;
  }
  cpu_seconds_ = sample.cpu_seconds;
  cpu_sampled_ = now;
  if (last_step_ > step_before || (sample.reported == 0 && !kept_from_running))
    LookForSurvival(last_step_ > step_before);
  TellOfReopenedFiles(now);
  LookForFullLog(now, sample.output_bytes);
  // To kill and restore it would undo what somebody wants of it.
  if (kept_from_running) return progress_.Excuse(sample);
  progress_.Add(sample);
  TellOfUnseenHangs(now);
  if (!progress_.Hangs(now)) return;
  hung_ = true;
  hung_since_ns_ = SoundUntilNanos();
  Log(LogLevel::kWarning, absl::StrCat("job '", name_, "' has not got any further for ",
                                       static_cast<int64_t>(progress_.QuietSeconds(now)),
                                       " seconds: it is killed, to be brought back"));
  KillAll();
}

void SupervisedJob::LookForSurvival(bool further_step) {
  {
    absl::MutexLock lock(&mutex_);
    const int64_t until = further_step ? record_.will_end_until_ns() : record_.will_end_quietly_until_ns();
    if (record_.will_end_until_ns() == 0 || until == 0 || MonotonicNanos() < until) return;
    ForgetSignal();
  }
  Save();
  notices_.Warn(
      "it was sent a signal that ends most programs, and has gone on: when it dies it is brought back again; "
      "'rekindle stop' ends it for good");
}

int64_t SupervisedJob::SoundUntilNanos() {
  return MonotonicNanos() - static_cast<int64_t>((MonotonicSeconds() - progress_.SoundUntilSeconds()) * 1e9);
}

bool SupervisedJob::HasDied() const {
  if (end_->WaitFor(absl::ZeroDuration())) return true;
  // The reaper may be behind.
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(record_.pid());
  return stat.ok() ? stat->ended() : absl::IsNotFound(stat.status());
}

int64_t SupervisedJob::SoundBeforeNanos() {
  const int64_t old = MonotonicNanos() - kProvenNanos;
  return record_.policy().hang_seconds() > 0 ? std::min(old, SoundUntilNanos()) : old;
}

bool SupervisedJob::AwaitBoundary(const std::function<bool()>& given_up) {
  if (!job_file_) return false;
  auto said = job_file_->Read();
  // Those who have come to one in this life come to the next.
  if (!said.ok() || said->job.boundaries == boundaries_) return false;
  auto due = job_file_->SetDue();
  if (!due.ok()) return false;
  const double deadline = MonotonicSeconds() + kBoundaryPatienceSeconds;
  for (;;) {
    said = job_file_->Read();
    if (said.ok() && said->job.waiting == *due) return true;
    if (!said.ok() || MonotonicSeconds() >= deadline || end_->WaitFor(absl::ZeroDuration())) return false;
    {
      absl::MutexLock lock(&mutex_);
      if (leave_ || cancel_image_.load()) return false;
    }
    if (given_up && given_up()) return false;
    job_file_->WaitForChange(absl::Milliseconds(20));
  }
}

void SupervisedJob::ReceiveVisit() {
  const uint64_t visit = visits_.WhichWaits();
  if (visit == 0) return;  // it has just been given up
  SetPhase("checkpointing");
  const bool at_boundary = AwaitBoundary([this, visit] { return !visits_.IsUnderWay(visit); });
  // At one that it comes to later it need not wait.
  if (!at_boundary && job_file_) job_file_->Release(/*image_taken=*/false).IgnoreError();
  const supervise::ProgressSample before = Sample();
  progress_.Add(before);
  // What it asks for itself it wants to be stored.
  const bool asks = at_boundary && NewWish().has_value();
  visits_.LetFreeze(visit);
  const auto wanted = [this] {
    absl::MutexLock lock(&mutex_);
    return Wanted();
  };
  while (at_boundary && !wanted() && !end_->WaitFor(absl::ZeroDuration())) {
    job_file_->KeepWaiting().IgnoreError();
    if (visits_.AwaitOver(visit, /*until_stored=*/asks, kTick)) break;
  }
  SetPhase("running");
  if (!at_boundary) return;
  job_file_->Release(visits_.HasImage(visit, /*until_stored=*/asks)).IgnoreError();
  const supervise::ProgressSample after = Sample();
  progress_.Rebase(after, after.at_seconds - before.at_seconds);
  cpu_sampled_ = 0;  // the rate is that of a job that runs
}

std::optional<uint64_t> SupervisedJob::NewWish() const {
  const auto said = job_file_->Read();
  if (!said.ok() || said->job.wanted == wanted_) return std::nullopt;
  return said->job.wanted;
}

// The job is waited for when all else is ready, and waits itself no longer than it has to.
class SupervisedJob::BoundaryGate : public ckpt::CaptureGate {
 public:
  // `asked` as for TakeImage.
  BoundaryGate(SupervisedJob& job, bool asked) : job_(job), asked_(asked) {}

  absl::Status BeforeFreeze() override {
    if (std::exchange(awaited_, true)) return absl::OkStatus();
    at_boundary_ = job_.AwaitBoundary();
    before_ = job_.Sample();
    job_.progress_.Add(before_);
    return absl::OkStatus();
  }
  void StandsStill() override { job_.KeepItsFilesMeanwhile(); }
  // Its memory is ours. What it asked for itself it wants to be stored.
  absl::Status OnFrozen() override {
    job_.AwaitItsFilesKept();
    job_.NoteFrozen();
    frozen_ns_ = MonotonicNanos();
    if (!job_.job_file_) return absl::OkStatus();
    if (const auto wish = asked_ ? std::nullopt : job_.NewWish()) {
      job_.wanted_ = *wish;
      asked_ = true;
    }
    if (!asked_) job_.job_file_->Release(/*image_taken=*/true).IgnoreError();
    keeps_waiting_.store(asked_);
    return absl::OkStatus();
  }
  absl::Status BeforeCommit() override { return absl::OkStatus(); }
  void BeforeNextTry() override {
    if (asked_) return;  // it waits for this image
    if (std::exchange(at_boundary_, false)) job_.job_file_->Release(/*image_taken=*/false).IgnoreError();
    // What was done to the job until now is no sign of it, as what CRIU reads within it.
    if (std::exchange(awaited_, false)) {
      const supervise::ProgressSample now = job_.Sample();
      job_.progress_.Rebase(now, now.at_seconds - before_.at_seconds);
    }
    thawed_.reset();
  }

  // To be called now and then while the image is taken, from another thread, too: from OnFrozen on, that one
  // alone uses the file.
  void KeepWaiting() {
    if (keeps_waiting_.load()) job_.job_file_->KeepWaiting().IgnoreError();
  }

  // The job runs on. May be called again.
  void OnThawed() {
    if (!thawed_) thawed_ = job_.Sample();
  }

  // When nothing of ours held it up any more (CLOCK_MONOTONIC), now that its memory is kept; it may have
  // waited on. 0: it has not stood still. `freeze_seconds`: as for Account.
  int64_t ThawedNanos(double freeze_seconds) const {
    return frozen_ns_ == 0 ? 0 : frozen_ns_ + static_cast<int64_t>(freeze_seconds * 1e9);
  }
  bool WaitedForImage() const { return at_boundary_ && asked_; }

  // What the job had done until then.
  const supervise::ProgressSample& before() const { return before_; }
  // Excuses the time in which we have kept it from running, and no more: it may hang as well while its image
  // is stored. `freeze_seconds`: 0 where that is not known. `after`: now that the image is stored, or there
  // is none.
  void Account(double freeze_seconds, const supervise::ProgressSample& after) const {
    if (!awaited_) return;
    if (!thawed_ || (at_boundary_ && asked_))
      return job_.progress_.Rebase(after, after.at_seconds - before_.at_seconds);
    const double until_thawed = thawed_->at_seconds - before_.at_seconds;
    job_.progress_.Rebase(*thawed_,
                          freeze_seconds > 0 ? std::min(freeze_seconds, until_thawed) : until_thawed);
    job_.progress_.Add(after);
  }

 private:
  SupervisedJob& job_;
  bool asked_, awaited_ = false, at_boundary_ = false;
  int64_t frozen_ns_ = 0;
  std::atomic<bool> keeps_waiting_{false};
  supervise::ProgressSample before_ = job_.Sample();
  std::optional<supervise::ProgressSample> thawed_;
};

absl::Status SupervisedJob::CaptureImage(BoundaryGate* gate, v1::CheckpointResult* result) {
  v1::CheckpointRequest request;
  request.set_job(name_);
  {
    absl::MutexLock lock(&mutex_);
    const v1::Supervision& policy = record_.policy();
    const std::string image = absl::StrCat(ImagesName(), ":", ImageTag());
    request.set_reference(store::NormalizeReference(image).value_or(image));
    if (const int64_t sound_before = SoundBeforeNanos(); !HasDied())
      NoteSound(sound_before, /*is_over=*/false);
    points_.BeginTaking(request.reference());
    for (auto& [label, value] : LabelsOfImage(points_.taking_number()))
      (*request.mutable_labels())[label] = value;
    // Later ones find the one before by themselves.
    for (const v1::RestartPoint& point : record_.points()) {
      if (!record_.image_in_life() && point.image() == record_.from_image())
        request.set_parent(ExactNameOf(point));
    }
    if (policy.rollback().mode() == v1::Rollback::ALL) request.set_file_contents(true);
    *request.mutable_ignore_paths() = policy.rollback().ignore_paths();
    *request.mutable_track_paths() = policy.track_paths();
  }
  Call call = OwnCall();
  call.kept_staging = &kept_staging_;
  call.gate = gate;
  call.cancelled = [gate, cancelled = std::move(call.cancelled)] {
    gate->KeepWaiting();
    return cancelled();
  };
  auto take = [&] {
    return CatchNoMoreThreads([&] {
      return Checkpoint(node_, call, request, [&](const v1::CheckpointEvent& event) {
        if (event.progress().phase() == "commit") gate->OnThawed();
        if (event.has_result()) *result = event.result();
        return true;
      });
    });
  };
  absl::Status status = take();
  if (absl::IsNotFound(status) && ListAgain()) status = take();
  // Its parent may have been removed.
  if (absl::IsNotFound(status) && !request.parent().empty()) {
    request.clear_parent();
    status = take();
  }
  absl::MutexLock lock(&mutex_);
  points_.EndTaking();
  return status;
}

absl::Status SupervisedJob::TakeImage(bool asked, std::string* image) {
  SetPhase("checkpointing");
  const double began = MonotonicSeconds();
  const int64_t began_ns = MonotonicNanos();
  uint64_t answers;
  {
    absl::MutexLock lock(&mutex_);
    answers = images_asked_;
  }
  const Strays strays = LookForStrays();
  KeepItsFiles();
  BoundaryGate gate(*this, asked);
  v1::CheckpointResult result;
  absl::Status status = CaptureImage(&gate, &result);
  const supervise::ProgressSample before = gate.before(), after = Sample();
  gate.Account(result.freeze_seconds(), after);
  if (job_file_) job_file_->Release(status.ok()).IgnoreError();
  const int64_t thawed_ns = gate.ThawedNanos(result.freeze_seconds());
  const int64_t ran_on_ns = gate.WaitedForImage() ? MonotonicNanos() : thawed_ns;
  // Otherwise those that are kept would keep all that come after them away, for good.
  const bool made_room = RemovingImagesHelps(status) && RemoveOldImages(/*make_room=*/true);
  if (RemovingImagesHelps(status) && !made_room) {
    absl::MutexLock lock(&mutex_);
    const auto& points = record_.points();
    status = WithWhatIsKept(status, points.empty() ? "" : points.rbegin()->image());
  }
  if (status.ok()) {
    // What the job would have computed meanwhile, but did not: it stood still, and shared the processors.
    const double taken = after.at_seconds - before.at_seconds, used = after.cpu_seconds - before.cpu_seconds;
    double cost = result.freeze_seconds();
    if (cpu_rate_ > 0.05 && used >= 0) cost = std::clamp(taken - used / cpu_rate_, cost, taken);
    absl::MutexLock lock(&mutex_);
    interval_.OnImage(cost);
    image_owed_ = false;
  }
  // Where it has died there is nothing to tell of images; the reaper may be a moment behind.
  if (absl::IsNotFound(status)) end_->WaitFor(kDeathIsTold);
  TellOfImage(status);
  {
    absl::MutexLock lock(&mutex_);
    phase_ = "running";
    if (HasDied()) died_since_ns_ = std::max(began_ns, thawed_ns);
    if (status.ok()) {
      points_.RanOnFrom(result.image().reference(), ran_on_ns);
      for (v1::RestartPoint& point : *record_.mutable_points()) {
        if (point.image() == result.image().reference()) point.set_ours(true);
      }
      record_.set_checkpoint_count(record_.checkpoint_count() + 1);
      record_.set_last_freeze_seconds(result.freeze_seconds());
      record_.set_total_freeze_seconds(record_.total_freeze_seconds() + result.freeze_seconds());
      record_.set_stored_bytes(record_.stored_bytes() + static_cast<int64_t>(result.image().stored_bytes()));
      record_.clear_last_error();
    } else if (!leave_ && !record_.stopping() && !end_->WaitFor(absl::ZeroDuration())) {
      record_.set_last_error(absl::StrCat("no image was taken: ", status.message()));
    }
  }
  Save();
  {
    absl::MutexLock lock(&mutex_);
    last_image_ = status;
    images_answered_ = answers;
  }
  if (status.ok()) {
    if (image != nullptr) *image = result.image().reference();
    TellOfStrays(strays);
    for (const std::string& warning : result.warnings()) notices_.WarnOfKind(warning, "its images: ");
    // Counted from the beginning of one to the beginning of the next.
    PlanNextImage(std::max(0.1, interval_.Seconds() - (MonotonicSeconds() - began)));
    RemoveOldImages();
  } else if (absl::IsResourceExhausted(status)) {
    node_.supervisor().CollectGarbageSoon(0);
    PlanNextImage(std::min(interval_.Seconds(), made_room ? kRoomMadeSeconds : kImageRetrySeconds));
  } else {
    PlanNextImage(absl::IsAborted(status) ? kBusySeconds : std::min(interval_.Seconds(), kImageRetrySeconds));
  }
  cpu_sampled_ = 0;  // the rate is that between images
  return status;
}

void SupervisedJob::TellOfImage(const absl::Status& taken) {
  if (taken.ok()) return notices_.ImageTaken();
  bool wanted;
  {
    absl::MutexLock lock(&mutex_);
    wanted = !leave_ && !record_.stopping();
  }
  if (!wanted || end_->WaitFor(absl::ZeroDuration()))
    return notices_.NoImageWanted(taken, MonotonicSeconds());
  notices_.NoImage(taken, MonotonicSeconds(), interval_.Seconds());
}

bool SupervisedJob::RemoveOldImages(bool make_room) {
  int64_t sound_before;
  std::vector<v1::RestartPoint> old;
  const std::vector<std::string> damaged = DamagedImages();
  {
    absl::MutexLock lock(&mutex_);
    // In this order: a death that comes after the look at it is younger than what counts as sound.
    sound_before = SoundBeforeNanos();
    // How long the images had been outlived by then the next life knows, which removes what is too many.
    if (HasDied()) return false;
    NoteSound(sound_before, /*is_over=*/false);
    old = points_.Superfluous(make_room, sound_before, damaged);
  }
  std::vector<store::ImageInfo> images;
  std::vector<v1::RestartPoint> earlier = ImagesOfEarlierStarts(make_room, old, &images);
  for (std::vector<v1::RestartPoint>* const some : {&earlier, &old}) LeaveWhatWasNeeded(some);
  std::vector<store::ImageInfo> whole = images;
  std::erase_if(whole, [&damaged](const store::ImageInfo& image) {
    return std::binary_search(damaged.begin(), damaged.end(), image.reference);
  });
  uint64_t before;
  size_t at_least = 0;
  std::string sound;
  {
    absl::MutexLock lock(&mutex_);
    before = NumbersBeforeStart(record_);
    // What it has begun with may hold a death, as may all that it has taken since, and the last one before.
    if (!earlier.empty() && !points_.HasSoundOwn(whole, sound_before)) {
      at_least = 1;
      sound = points_.SoundOfEarlierStarts(earlier, whole);
    }
  }
  const auto is_sound = [&sound](const v1::RestartPoint& image) { return image.image() == sound; };
  const auto beyond_kept = [&] {
    absl::MutexLock lock(&mutex_);
    std::vector<v1::RestartPoint> beyond = points_.BeyondKept(earlier, old, at_least);
    std::erase_if(beyond, is_sound);
    return beyond;
  };
  const auto is_earlier = [before](const v1::RestartPoint& image) { return image.number() <= before; };
  // What others need is asked for only where something may go.
  if (std::any_of(old.begin(), old.end(), is_earlier) ||
      (make_room ? !earlier.empty() : !beyond_kept().empty()))
    LeaveWhatOthersNeed(before, std::move(images), {&earlier, &old});
  if (make_room) {
    std::erase_if(earlier, is_sound);
    if (earlier.size() <= at_least) earlier.clear();
    // Whether there is room then the next attempt tells.
    if (earlier.size() > 1) earlier.resize(1);
    return RemoveToMakeRoom(earlier) || RemoveToMakeRoom(old);
  }
  earlier = beyond_kept();
  old.insert(old.begin(), std::make_move_iterator(earlier.begin()), std::make_move_iterator(earlier.end()));
  return RemoveImagesOf(old);
}

bool SupervisedJob::RemoveToMakeRoom(const std::vector<v1::RestartPoint>& images) {
  if (images.empty()) return false;
  Log(LogLevel::kWarning,
      absl::StrCat("job '", name_, "': ", images.size(),
                   images.size() == 1 ? " older image of it goes" : " older images of it go",
                   ", since there is no room for a new one beside it"));
  return RemoveImagesOf(images);
}

void SupervisedJob::LeaveWhatOthersNeed(uint64_t before, std::vector<store::ImageInfo> images,
                                        std::initializer_list<std::vector<v1::RestartPoint>*> going) {
  if (first_submitted_unix_ns_ == 0) return;
  absl::Status known;
  if (images.empty()) {
    absl::StatusOr<std::vector<store::ImageInfo>> listed = StoredImages();
    known = listed.status();
    if (listed.ok()) images = *std::move(listed);
  }
  std::map<std::string, store::ImageInfo> there;
  for (store::ImageInfo& info : images) there.emplace(info.reference, std::move(info));
  const absl::StatusOr<ImageNeeds> needs = ImageNeeds::Of(node_, name_);
  // What this start has taken is its own.
  for (std::vector<v1::RestartPoint>* const some : going) {
    std::erase_if(*some, [&](const v1::RestartPoint& image) {
      if (image.number() > before) return false;
      if (!known.ok() || !needs.ok()) return true;
      const auto info = there.find(image.image());
      if (info == there.end() || needs->ReasonsFor(info->second).empty()) return false;
      needed_until_[image.image()] = MonotonicSeconds() + kNeededSeconds;
      return true;
    });
  }
}

void SupervisedJob::LeaveWhatWasNeeded(std::vector<v1::RestartPoint>* going) {
  const double now = MonotonicSeconds();
  std::erase_if(needed_until_, [now](const auto& image) { return image.second < now; });
  std::erase_if(*going, [&](const v1::RestartPoint& image) { return needed_until_.contains(image.image()); });
}

std::vector<v1::RestartPoint> SupervisedJob::ImagesOfEarlierStarts(bool make_room,
                                                                   const std::vector<v1::RestartPoint>& going,
                                                                   std::vector<store::ImageInfo>* images) {
  if (first_submitted_unix_ns_ == 0 || (earlier_ && earlier_->empty())) return {};
  if (earlier_ && !make_room) {
    std::vector<v1::RestartPoint> known = *earlier_;
    LeaveWhatWasNeeded(&known);
    absl::MutexLock lock(&mutex_);
    if (points_.BeyondKept(std::move(known), going, /*at_least=*/0).empty()) return {};
  }
  absl::StatusOr<std::vector<store::ImageInfo>> listed = StoredImages();
  if (!listed.ok()) return {};
  *images = *std::move(listed);
  absl::MutexLock lock(&mutex_);
  // No more of them are taken.
  earlier_ = points_.OfEarlierStarts(*images);
  return *earlier_;
}

std::vector<std::string> SupervisedJob::DamagedImages() {
  const absl::StatusOr<std::shared_ptr<store::Store>> store = node_.OpenStore(Node::Access::kRead);
  if (!store.ok()) return {};
  return store::ReadDamagedImages(**store).value_or(std::vector<std::string>());
}

absl::StatusOr<std::vector<store::ImageInfo>> SupervisedJob::StoredImages() {
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  return store->List();
}

absl::Status SupervisedJob::RemoveImageOf(const v1::RestartPoint& image) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
  RK_ASSIGN_OR_RETURN(const store::ImageInfo info,
                      FindImageFor(node_, *store, OwnCall().caller, image.image(), "remove"));
  // Its name is another's by now.
  if (!image.digest().empty() && info.digest != image.digest()) return absl::OkStatus();
  const ConnectionLocks locks(*store, {&info, 1});
  RK_RETURN_IF_ERROR(store->RemoveExactly(info));
  locks.RemoveOf(info);
  return absl::OkStatus();
}

bool SupervisedJob::RemoveImagesOf(const std::vector<v1::RestartPoint>& images) {
  bool any = false;
  for (const v1::RestartPoint& image : images) {
    absl::Status removed = RemoveImageOf(image);
    if (!removed.ok() && !absl::IsNotFound(removed)) {
      Log(LogLevel::kWarning,
          absl::StrCat("image '", image.image(), "' of job '", name_, "' stays: ", removed.message()));
      continue;
    }
    any = true;
    {
      absl::MutexLock lock(&mutex_);
      points_.Remove(image.image());
    }
    Save();
  }
  if (images.empty()) return false;
  if (auto store = node_.OpenStore(Node::Access::kRead); store.ok())
    node_.clones().ForgetRemovedImages(**store);
  node_.supervisor().CollectGarbageSoon();
  return any;
}

}  // namespace rekindle::daemon
