// A supervised job that has died: whether, when and from where it goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timeline.h"
#include "base/utf8.h"
#include "daemon/hindrance.h"
#include "daemon/job_launcher.h"
#include "daemon/job_log.h"
#include "daemon/oom_kill.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_job.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"
#include "dedup_store/store.h"
#include "restore/compatibility.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

using supervise::Death;
using supervise::RestartDecision;

constexpr int kDeathsKept = 10;
// A job that stands still: its files have mostly been found by the time that its memory is copied.
constexpr absl::Duration kKeepingMayHoldUp = absl::Milliseconds(100);
// For PIDs of what is just ending, say: then an older image may do.
constexpr int kTriesForMoment = 6;
constexpr double kBetweenTriesSeconds = 5;
// Of records that do not say it.
constexpr double kUsualRetrySeconds = 600;
// In trouble of the machine, doubled each time.
constexpr double kFirstWaitSeconds = 1, kLongestWaitSeconds = 30;
// While the job runs again already.
constexpr absl::Duration kLookedForFilesBy = absl::Milliseconds(500);
// For another CRIU; another kernel comes with a daemon of its own.
constexpr double kBetweenLooksAtMachineSeconds = 60;

double SecondsBetween(int64_t from_ns, int64_t to_ns) {
  return std::max(0.0, static_cast<double>(to_ns - from_ns) * 1e-9);
}

// By the clock that nobody sets, if it was this boot's.
double SecondsSince(int64_t ns, int64_t unix_ns) {
  return ns > 0 ? SecondsBetween(ns, MonotonicNanos()) : SecondsBetween(unix_ns, UnixNanos());
}

absl::StatusOr<v1::JobManifest> ManifestOf(store::Store& store, const std::string& digest) {
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<store::ImageReader> image, store.OpenImage(digest));
  return restore::ReadJobManifest(*image);
}

// The last line of what it wrote: what most programs say before they end by their own doing. Its log shows
// that no more once it is rolled back. Empty: there is none that could be read.
std::string LastWords(const std::optional<RunAs>& user, const std::string& log) {
  constexpr size_t kLooksAt = 4096, kShown = 200;
  // The file may be anything by now, of which the job's user is told no more than he can read himself.
  const absl::StatusOr<UniqueFd> file =
      OpenFileAs(user, log, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, 0);
  struct stat info;
  if (!file.ok() || ::fstat(file->get(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  std::string end(std::min(kLooksAt, static_cast<size_t>(info.st_size)), '\0');
  const ssize_t got =
      ::pread(file->get(), end.data(), end.size(), info.st_size - static_cast<off_t>(end.size()));
  if (got <= 0) return "";
  end.resize(static_cast<size_t>(got));
  absl::string_view text = end;
  for (;;) {
    text = absl::StripTrailingAsciiWhitespace(text);
    // Progress bars begin their line anew with the second.
    const size_t line = text.find_last_of("\n\r");
    const absl::string_view last = line == absl::string_view::npos ? text : text.substr(line + 1);
    // A rule below what was said, as torchrun draws it, says nothing.
    const bool says = std::any_of(last.begin(), last.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
             (static_cast<unsigned char>(c) & 0x80) != 0;
    });
    if (says || line == absl::string_view::npos)
      return ToUtf8(absl::StripLeadingAsciiWhitespace(last), kShown);
    text = text.substr(0, line);
  }
}

// Of a moment of CLOCK_MONOTONIC.
int64_t OnMachinesClock(int64_t monotonic_ns) { return UnixNanos() - (MonotonicNanos() - monotonic_ns); }

}  // namespace

Death SupervisedJob::TakeDeath() {
  return DeathBy(end_->WaitFor(absl::ZeroDuration()).value_or(ExitState{}), UnixNanos());
}

Death SupervisedJob::DeathBy(const ExitState& exit, int64_t ended_unix_ns) {
  last_exit_ = exit;
  const int64_t since = since_death_ns_ = std::max(int64_t{0}, UnixNanos() - ended_unix_ns);
  Death death;
  absl::MutexLock lock(&mutex_);
  AddRunTime();
  counts_run_time_ = false;
  death.lived_seconds = std::max(0.0, SecondsOfLife() - static_cast<double>(since) * 1e-9);
  death.progressed = best_step_ > best_step_before_;
  best_step_before_ = std::max(best_step_, best_step_before_);
  if (hung_) {
    death.kind = Death::Kind::kHung;
  } else if (end_unknown_->load()) {
    death.kind = Death::Kind::kUnknown;
    last_exit_ = ExitState{0, SIGKILL};
  } else if (exit.signal != 0) {
    const int64_t lived = static_cast<int64_t>(death.lived_seconds * 1e9);
    const bool memory =
        exit.signal == SIGKILL && WasKilledForMemory(record_.pid(), MonotonicNanos() - since - lived);
    death.kind = memory ? Death::Kind::kOutOfMemory : Death::Kind::kSignalled;
    death.code = exit.signal;
  } else {
    death.kind = Death::Kind::kExited;
    death.code = exit.code;
  }
  int64_t sound_before = hung_ ? hung_since_ns_ : MonotonicNanos() - since - kProvenNanos;
  if (died_since_ns_ != 0) sound_before = std::min(sound_before, died_since_ns_ - kProvenNanos);
  NoteSound(sound_before, /*is_over=*/true);
  death.image_suspect = points_.FromMayHoldDeath();
  if (supervise::MayHoldItsBeginning(death)) {
    // An image that may hold the beginning of this end is no progress.
    if (points_.AnyOfLife(sound_before, OnMachinesClock(sound_before))) death.image_taken = true;
  } else {
    death.image_taken = record_.image_in_life();
  }
  return death;
}

Death SupervisedJob::DeathWithoutWitness(bool other_boot) {
  v1::SupervisedJobRecord record;
  {
    absl::MutexLock lock(&mutex_);
    record = record_;
  }
  // Without the lock: the disks may take their time.
  const bool was_left = !other_boot && IsLeftLife(directory_, record);
  const int64_t last_sign = LastSignOfLife(record);
  absl::MutexLock lock(&mutex_);
  Death death;
  since_death_ns_ = 0;
  if (record_.coming_to_life()) return death;
  since_death_ns_ = std::max(int64_t{0}, UnixNanos() - last_sign);
  death.lived_seconds = std::max(0.0, SecondsOfLife() - static_cast<double>(since_death_ns_) * 1e-9);
  // The machine's clock may have been set back since.
  points_.NoteSound(MonotonicNanos() - since_death_ns_ - kProvenNanos, last_sign - kProvenNanos,
                    /*is_over=*/true);
  // What ended the whole machine does not lie in the image.
  if (other_boot) {
    death.kind = Death::Kind::kMachineRestarted;
  } else if (was_left) {
    death.kind = Death::Kind::kDaemonLeft;
  }
  death.progressed = other_boot;
  death.image_taken = record_.image_in_life() || points_.AnyOfLife(INT64_MAX, INT64_MAX);
  return death;
}

void SupervisedJob::NoteSound(int64_t sound_before_ns, bool is_over) {
  points_.NoteSound(sound_before_ns, OnMachinesClock(sound_before_ns), is_over);
}

double SupervisedJob::SecondsOfLife() const {
  return SecondsSince(record_.life_began_ns(), record_.life_began_unix_ns());
}

int64_t SupervisedJob::LastSignOfLife(const v1::SupervisedJobRecord& record) const {
  int64_t last = record.life_began_unix_ns();
  for (const v1::RestartPoint& point : record.points()) {
    if (point.number() > record.numbers_before()) last = std::max(last, point.taken_unix_ns());
  }
  // What it wrote.
  for (const std::string& path : {record.log(), JobFilePath()}) {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      last = std::max(last, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec);
  }
  return last;
}

double SupervisedJob::LostSeconds() const {
  const double dead = static_cast<double>(since_death_ns_) * 1e-9;
  const double life = std::max(0.0, SecondsOfLife() - dead);
  if (record_.points().empty()) return life;
  const v1::RestartPoint& newest = *record_.points().rbegin();
  const double since_image = std::max(0.0, SecondsSince(newest.taken_ns(), newest.taken_unix_ns()) - dead);
  return record_.image_in_life() ? since_image : std::min(life, since_image);
}

void SupervisedJob::NoteDeath(const Death& death, absl::string_view words) {
  auto* deaths = record_.mutable_deaths();
  const absl::Time died = absl::Now() - absl::Nanoseconds(since_death_ns_);
  deaths->Add(absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S", died, absl::LocalTimeZone()), " ",
                           supervise::Describe(death), words.empty() ? "" : ": ", words));
  std::rotate(deaths->begin(), deaths->end() - 1, deaths->end());
  if (deaths->size() > kDeathsKept) deaths->DeleteSubrange(kDeathsKept, deaths->size() - kDeathsKept);
}

void SupervisedJob::FindPoints() {
  auto store = node_.OpenStore(Node::Access::kRead);
  auto images = store.ok() ? (*store)->List() : absl::StatusOr<std::vector<store::ImageInfo>>(store.status());
  if (!images.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("job '", name_, "': its images can't be listed: ", images.status().message()));
    return;
  }
  const Caller owner = OwnCall().caller;
  std::erase_if(*images,
                [&](const store::ImageInfo& image) { return !node_.policy().MayUse(owner, image.owner); });
  std::vector<std::string> found;
  {
    absl::MutexLock lock(&mutex_);
    found = points_.Find(*images, record_.boot_id() == ThisBootId());
  }
  // After a daemon was killed.
  for (const store::ImageInfo& image : *images) {
    if (std::find(found.begin(), found.end(), image.reference) == found.end()) continue;
    const absl::StatusOr<v1::JobManifest> manifest = ManifestOf(**store, image.digest);
    absl::MutexLock lock(&mutex_);
    // Why it can't be read the restore tells.
    if (manifest.ok() && manifest->captured_unix_ns() != 0)
      points_.WasTaken(image.reference, manifest->captured_unix_ns());
  }
}

void SupervisedJob::LogIfLeft(const v1::FileRollback& file) const {
  // Without a daemon the log is the terminal of who is told with the restart.
  if (file.action() != v1::FileRollback::LEFT || !node_.options().daemon) return;
  Log(LogLevel::kWarning,
      absl::StrCat("job '", name_, "': ", file.path(), " is left as it is: ", file.why()));
}

absl::StatusOr<RegisteredJob> SupervisedJob::RestoreFrom(const v1::RestartPoint& point,
                                                         v1::JobRestarted* restarted, bool revival,
                                                         const std::string& log) {
  OpenJobFile();
  bool silent;
  {
    absl::MutexLock lock(&mutex_);
    silent = points_.IsSilent(point.digest());
  }
  // What its last life has said it has not said yet: until it does, other signs count.
  if (job_file_ && silent) job_file_->ForgetJob().IgnoreError();
  if (job_file_) job_file_->MarkRestored().IgnoreError();
  v1::RestoreRequest request;
  request.set_image(ExactNameOf(point));
  request.set_name(name_);
  request.set_log(log);
  request.set_detach(true);
  {
    absl::MutexLock lock(&mutex_);
    request.set_tcp_close(record_.policy().tcp_close());
    request.set_ignore_mismatch(record_.policy().ignore_mismatch());
    *request.mutable_rollback() = record_.policy().rollback();
    record_.set_coming_to_life(true);
    record_.mutable_restarts()->set_decided(false);
    record_.set_from_image(point.image());
    record_.set_from_number(point.number());
    ForgetSignal();
    record_.set_boot_id(ThisBootId());
  }
  // A full disk must not keep it from coming back: nothing else of this needs room there.
  Save();
  PutItsFilesBack(point, restarted);
  LookForReopenedFiles(point);
  // One that begins with an image removes what was made before as soon as it runs.
  if (HasUnkeptImages()) KeepItsFiles(point.taken_unix_ns());
  const v1::JobRestarted put_back = *restarted;
  Call call = OwnCall();
  call.in_memory = &kept_staging_.image();
  call.takes_edited_files = revival;
  auto job = CatchNoMoreThreads([&] {
    return RestoreJob(node_, call, request, [&](const v1::JobEvent& event) {
      if (event.has_rolled_back()) {
        *restarted->mutable_files() = event.rolled_back().files();
        restarted->mutable_files()->MergeFrom(put_back.files());
      }
      for (const v1::FileRollback& file : event.rolled_back().files()) LogIfLeft(file);
      for (const std::string& warning : event.started().warnings())
        Log(absl::StrContains(warning, restore::kEditedSince) ? LogLevel::kWarning : LogLevel::kInfo,
            absl::StrCat("job '", name_, "': ", warning));
      return true;
    });
  });
  kept_staging_.LetKernelHaveIt();
  if (job.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      record_.set_log(job->record.log);
    }
    for (const auto& [file, warning] :
         WarnOfOthersCut(restarted->files(), ProcessTree(job->record.pid), /*caller=*/0)) {
      if (cut_of_others_told_.insert(file).second) notices_.Warn(warning);
    }
  }
  return job;
}

void SupervisedJob::ForgetImagesOfHang() {
  std::vector<v1::RestartPoint> hanging;
  {
    absl::MutexLock lock(&mutex_);
    hanging = points_.OfHang(hung_since_ns_);
  }
  RemoveImagesOf(hanging);
}

bool SupervisedJob::HasUnkeptImages() {
  absl::MutexLock lock(&mutex_);
  return points_.AnyNew();
}

void SupervisedJob::KeepItsFiles(int64_t begins_with_unix_ns) {
  for (const std::string& warning : removed_.Keep(begins_with_unix_ns)) notices_.WarnOfKind(warning);
}

void SupervisedJob::KeepItsFilesMeanwhile() { removed_.KeepMeanwhile(); }

void SupervisedJob::AwaitItsFilesKept() { removed_.AwaitKept(kKeepingMayHoldUp); }

void SupervisedJob::NoteFrozen() {
  absl::MutexLock lock(&mutex_);
  points_.TakingIsFrozen(MonotonicNanos());
}

void SupervisedJob::ForgetItsFiles(bool ended) {
  std::optional<int64_t> oldest;
  {
    absl::MutexLock lock(&mutex_);
    oldest = points_.OldestKeptUnixNanos();
  }
  if (oldest) removed_.Forget(*oldest, ended);
}

void SupervisedJob::PutItsFilesBack(const v1::RestartPoint& point, v1::JobRestarted* restarted) {
  restarted->clear_files();
  for (v1::FileRollback& file : removed_.PutBack(point.taken_unix_ns())) {
    LogIfLeft(file);
    if (file.action() != v1::FileRollback::LEFT)
      Log(LogLevel::kInfo, absl::StrCat("job '", name_, "': ", file.path(), ": ", file.why()));
    *restarted->add_files() = std::move(file);
  }
}

void SupervisedJob::LookForReopenedFiles(const v1::RestartPoint& point) {
  ReopenedFiles::Options options;
  v1::Rollback rollback;
  {
    absl::MutexLock lock(&mutex_);
    rollback = record_.policy().rollback();
  }
  const auto manifest = [&]() -> absl::StatusOr<v1::JobManifest> {
    RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
    return ManifestOf(*store, point.digest());
  }();
  // Why it can't be read the restore tells.
  if (manifest.ok()) options = PlacesOf(*manifest, rollback);
  options.user = {owner_, OwnCall().caller.gid, OwnCall().caller.groups};
  options.image_unix_ns = point.taken_unix_ns();
  options.ended_unix_ns = died_unix_ns_;
  reopened_.LookFor(std::move(options));
}

RestartDecision SupervisedJob::DecideAfter(const Death& death) {
  absl::MutexLock lock(&mutex_);
  return restart_policy_.OnDeath(death, static_cast<size_t>(record_.points_size()), points_.Tried());
}

bool SupervisedJob::BringBack(Death death) {
  const Stopwatch since_death;
  hindered_since_ = 0;
  died_unix_ns_ = UnixNanos() - since_death_ns_;
  TellOfReopenedFiles(std::numeric_limits<double>::infinity());
  KillAll();
  FindPoints();
  if (death.kind == Death::Kind::kHung) ForgetImagesOfHang();
  const std::string how = supervise::Describe(death);
  const bool well = death.kind == Death::Kind::kExited && death.code == 0;
  std::string log;
  {
    absl::MutexLock lock(&mutex_);
    log = record_.log();
  }
  // What somebody else ended had not come to say why.
  const std::string words = well || !supervise::MayHoldItsBeginning(death) ? "" : LastWords(User(), log);
  bool meant;
  {
    absl::MutexLock lock(&mutex_);
    if (!well) NoteDeath(death, words);
    // However long it took for that: it may have had much to write.
    meant = !well && record_.will_end_until_ns() != 0;
    if (!meant && !well) {
      record_.set_lost_seconds(record_.lost_seconds() + LostSeconds());
      interval_.OnFailure();
    }
    phase_ = "waiting";
  }
  if (meant) {
    Finish(last_exit_, /*failed=*/false, absl::StrCat(how, ", as was asked for"));
    return false;
  }
  if (const std::string hint = well ? "" : HintAtRemovedFiles(); !hint.empty()) notices_.Warn(hint);
  if (!well) notices_.LogIsFull(HintAtFullLog());
  RestartDecision decision = DecideAfter(death);
  // In one with the death: to who takes over now it is not another one.
  if (decision.action == RestartDecision::Action::kRestart) NoteDecided();
  return Revive(std::move(decision), how, since_death);
}

std::string SupervisedJob::HintAtRemovedFiles() const {
  absl::MutexLock lock(&mutex_);
  if (record_.deaths().empty() || !record_.policy().keep_removed().empty() || record_.from_image().empty())
    return "";
  const std::string& last = record_.deaths(0);
  if (!absl::StrContains(last, "No such file or directory") && !absl::StrContains(last, "FileNotFoundError"))
    return "";
  return "it went back to an image, and misses a file: if it has removed that itself since, such as an old "
         "checkpoint, 'rekindle run --keep-removed FOLDER' keeps those in that folder";
}

std::string SupervisedJob::HintAtFullLog() const {
  std::string log;
  {
    absl::MutexLock lock(&mutex_);
    log = record_.log();
  }
  return WarnOfFullLog(log, owner_);
}

bool SupervisedJob::CarryOutDecision() {
  const Stopwatch since_death;
  KillAll();
  FindPoints();
  RestartDecision decision;
  std::string how;
  {
    absl::MutexLock lock(&mutex_);
    decision = restart_policy_.Decided();
    how = supervise::Describe(restart_policy_.state().last);
    phase_ = "waiting";
  }
  return Revive(std::move(decision), how, since_death);
}

// What is remembered over the attempts to bring it back.
struct SupervisedJob::Revival {
  static constexpr size_t kNone = SIZE_MAX;

  RestartDecision decision;
  const std::string how;  // its last life ended
  const Stopwatch& since_death;
  v1::JobRestarted passed_over = {};
  size_t unfit = kNone;  // the newest image that did not fit this machine, as so many back
  bool waits_for_machine = false;
};

bool SupervisedJob::Revive(RestartDecision decision, const std::string& how, const Stopwatch& since_death) {
  Revival revival{std::move(decision), how, since_death};
  for (;;) {
    if (revival.decision.action == RestartDecision::Action::kDone) {
      Finish(last_exit_, /*failed=*/false, how);
      return false;
    }
    size_t images;
    bool anew, ends;
    std::string newest;
    std::optional<v1::RestartPoint> point;
    {
      absl::MutexLock lock(&mutex_);
      images = static_cast<size_t>(record_.points_size());
      if (images > 0) newest = record_.points().rbegin()->image();
      anew = revival.decision.images_back >= images;
      // It would do everything once more, over what it has left: nobody but its owner can want that.
      ends = revival.decision.action == RestartDecision::Action::kGiveUp || (anew && record_.had_points());
      if (ends && revival.unfit < images) {
        revival.decision = restart_policy_.BackTo(revival.unfit, "none that is older leads further");
        revival.waits_for_machine = true;
        continue;
      }
    }
    if (ends) {
      GiveUp(revival.decision, images, newest);
      return false;
    }
    if (revival.decision.wait_seconds > 0) NoteDecided();
    // Also without a wait: its end may have been asked for while that was decided.
    if (!Wait(revival.decision.wait_seconds)) return EndWithoutLife();
    if (!anew) {
      absl::MutexLock lock(&mutex_);
      point = record_.points(static_cast<int>(images - 1 - revival.decision.images_back));
    }
    if (const std::optional<bool> is_back = Attempt(point, &revival)) return *is_back;
  }
}

void SupervisedJob::GiveUp(const RestartDecision& decision, size_t images, const std::string& newest) {
  std::string hint = HintAtRemovedFiles();
  if (hint.empty()) hint = HintAtFullLog();
  std::string why = decision.why;
  if (decision.action != RestartDecision::Action::kGiveUp) {
    why = absl::StrCat(
        decision.death,
        newest.empty()
            ? "; its images are gone, and it does not begin anew by itself: start it once more if it "
              "is to"
            : absl::StrCat("; it gets no further from any image that it can go back to (", images,
                           ", the newest ", newest, "), so that it is not restarted any more"));
  }
  bool was_to_go_on;
  {
    absl::MutexLock lock(&mutex_);
    was_to_go_on = record_.policy().restarts() > 0;
  }
  if (was_to_go_on && !newest.empty()) {
    absl::StrAppend(&why, ". When what it fails of is mended, `rekindle run --from ", newest,
                    " …` goes on from there, and so does the command that started it with --resume");
  }
  Finish(last_exit_, /*failed=*/true, absl::StrCat(why, hint.empty() ? "" : "; ", hint));
}

std::optional<bool> SupervisedJob::Attempt(const std::optional<v1::RestartPoint>& point, Revival* revival) {
  const std::string source = point ? point->image() : "its beginning";
  SetPhase("restarting");
  Log(LogLevel::kInfo, absl::StrCat("job '", name_, "' goes on from ", source, ": ", revival->decision.why));
  v1::JobEvent event;
  const absl::StatusOr<RegisteredJob> life =
      TryToRevive(point, revival->waits_for_machine, event.mutable_restarted());
  if (absl::IsCancelled(life.status()) && !Wait(0)) return EndWithoutLife();
  if (life.ok()) {
    BeginLife(*life);
    if (job_file_) job_file_->Release(true).IgnoreError();
    TellThatItIsBack(point, *revival, life->record.pid, &event);
    return true;
  }
  KillAll();
  if (point)
    revival->passed_over.add_passed_over(absl::StrCat(source, ": ", HindranceInWords(life.status())));
  const std::string problem =
      absl::StrCat("it could not be brought back from ", source, ": ", HindranceInWords(life.status()));
  Log(LogLevel::kError, absl::StrCat("job '", name_, "': ", problem));
  bool leave;
  {
    absl::MutexLock lock(&mutex_);
    leave = leave_;
    if (!leave) record_.set_last_error(problem);
  }
  if (leave) return EndWithoutLife();
  Save();
  if (revival->waits_for_machine) {  // it fits, and that was not all
    revival->unfit = Revival::kNone;
    revival->waits_for_machine = false;
  } else if (point && revival->unfit == Revival::kNone &&
             HindranceOf(life.status()) == Hindrance::kOtherMachine) {
    revival->unfit = revival->decision.images_back;
  }
  Death death;
  death.kind = Death::Kind::kRestoreFailed;
  revival->decision = DecideAfter(death);
  return std::nullopt;
}

void SupervisedJob::TellThatItIsBack(const std::optional<v1::RestartPoint>& point, const Revival& revival,
                                     pid_t pid, v1::JobEvent* event) {
  v1::JobRestarted* restarted = event->mutable_restarted();
  restarted->MergeFrom(revival.passed_over);
  if (point) restarted->set_image(point->image());
  restarted->set_why(revival.how);
  restarted->set_pid(pid);
  restarted->set_seconds(revival.since_death.seconds());
  if (point) {
    for (const std::string& path : reopened_.Candidates(kLookedForFilesBy))
      restarted->add_written_since(ToUtf8(path));
  }
  {
    absl::MutexLock lock(&mutex_);
    record_.set_restart_count(record_.restart_count() + 1);
    record_.clear_last_error();
    restarted->set_restart(record_.restart_count());
  }
  Save();
  events().Send(*event);
}

void SupervisedJob::NoteDecided() {
  {
    absl::MutexLock lock(&mutex_);
    record_.set_coming_to_life(false);
    record_.mutable_restarts()->set_decided(true);
  }
  Save();
}

absl::Status SupervisedJob::CheckStoreIsReadable() {
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  return store->CheckReadable();
}

absl::StatusOr<RegisteredJob> SupervisedJob::TryToRevive(const std::optional<v1::RestartPoint>& point,
                                                         bool waits_for_machine,
                                                         v1::JobRestarted* restarted) {
  double patience;
  {
    absl::MutexLock lock(&mutex_);
    patience = record_.policy().retry_seconds();
    if (patience == 0) patience = kUsualRetrySeconds;
  }
  double next_wait = kFirstWaitSeconds, next_look = kFirstWaitSeconds;
  std::string told;
  for (int moments = 1;;) {
    std::vector<std::string> warnings;
    absl::StatusOr<RegisteredJob> life =
        point ? RestoreFrom(*point, restarted, /*revival=*/true) : StartFromBeginning(UniqueFd(), &warnings);
    for (const std::string& warning : warnings)
      Log(LogLevel::kWarning, absl::StrCat("job '", name_, "': ", warning));
    if (life.ok()) return life;
    double wait = kBetweenTriesSeconds;
    Hindrance hindrance = HindranceOf(life.status());
    // What is in a store that has just gone is missing.
    absl::Status why = life.status();
    if (absl::IsUnavailable(node_.CheckStoreIsThere())) {
      hindrance = Hindrance::kMachine;
    } else if (hindrance == Hindrance::kImage && point) {
      if (absl::Status store = CheckStoreIsReadable(); !store.ok()) {
        hindrance = Hindrance::kLacking;
        why = std::move(store);
      }
    }
    switch (hindrance) {
      case Hindrance::kImage:
        return life;
      case Hindrance::kMoment:
        if (moments++ == kTriesForMoment) return life;
        break;
      case Hindrance::kMachine: {
        if (hindered_since_ == 0) hindered_since_ = MonotonicSeconds();
        const double left = hindered_since_ + patience - MonotonicSeconds();
        if (left <= 0) return life;
        wait = std::min(next_wait, left);
        next_wait = std::min(2 * next_wait, kLongestWaitSeconds);
        break;
      }
      case Hindrance::kOtherMachine:
        if (!waits_for_machine) return life;
        wait = kBetweenLooksAtMachineSeconds;
        break;
      case Hindrance::kName:  // over when that one ends
        break;
      case Hindrance::kLacking:
        wait = next_look;
        next_look = std::min(2 * next_look, kBetweenLooksAtMachineSeconds);
        break;
    }
    const std::string problem = absl::StrCat(kNotYet, HindranceInWords(why));
    const std::string log = absl::StrCat("job '", name_, "': ", problem);
    if (problem != told) {
      v1::JobEvent waits;
      waits.mutable_waits()->set_why(ToUtf8(HindranceInWords(why)));
      waits.mutable_waits()->set_down(true);
      notices_.Tell(waits, LogLevel::kWarning, log);
    } else if (hindrance != Hindrance::kOtherMachine && hindrance != Hindrance::kLacking) {
      Log(LogLevel::kWarning, log);
    }
    told = problem;
    restarted->set_hindered_by(HindranceInWords(why));
    {
      absl::MutexLock lock(&mutex_);
      record_.set_last_error(problem);
      phase_ = "waiting";
    }
    if (absl::IsResourceExhausted(life.status())) node_.supervisor().CollectGarbageSoon(0);
    NoteDecided();
    if (!Wait(wait)) return absl::CancelledError("something else is wanted of it");
    KillAll();
    SetPhase("restarting");
  }
}

bool SupervisedJob::EndWithoutLife() {
  bool stop, leave;
  {
    absl::MutexLock lock(&mutex_);
    leave = leave_;
    stop = stop_ && !leave_;
    // It would have gone on from that one, so that no later one can be wanted.
    if (stop && stop_checkpoint_ && !record_.points().empty())
      stop_image_ = record_.points().rbegin()->image();
  }
  if (stop) {
    KillAll();
    Finish(last_exit_, /*failed=*/false, "it was stopped while it waited to be brought back");
  }
  // That this attempt ends is not the job's doing.
  if (leave) NoteDecided();
  return false;
}

}  // namespace rekindle::daemon
