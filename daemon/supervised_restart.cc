// A supervised job that has died: whether, when and from where it goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
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
    const bool memory = exit.signal == SIGKILL && WasKilledForMemory(record_.pid(), MonotonicNanos() - lived);
    death.kind = memory ? Death::Kind::kOutOfMemory : Death::Kind::kSignalled;
    death.code = exit.signal;
  } else {
    death.kind = Death::Kind::kExited;
    death.code = exit.code;
  }
  if (!supervise::MayComeFromOutside(death)) {
    // Of its own doing: an image that may hold the beginning of this end is no progress.
    const int64_t sound_before = hung_ ? hung_since_ns_ : MonotonicNanos() - since - kProvenNanos;
    for (const v1::RestartPoint& point : record_.points()) {
      if (point.number() > record_.numbers_before() && point.taken_ns() <= sound_before)
        death.image_taken = true;
    }
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
  // Without the lock: the disk may take its time.
  const bool was_left = !other_boot && IsLeftLife(directory_, record);
  absl::MutexLock lock(&mutex_);
  Death death;
  since_death_ns_ = 0;
  if (record_.coming_to_life()) return death;
  since_death_ns_ = std::max(int64_t{0}, UnixNanos() - LastSignOfLife());
  death.lived_seconds = std::max(0.0, SecondsOfLife() - static_cast<double>(since_death_ns_) * 1e-9);
  // What ended the whole machine does not lie in the image.
  if (other_boot) {
    death.kind = Death::Kind::kMachineRestarted;
  } else if (was_left) {
    death.kind = Death::Kind::kDaemonLeft;
  }
  death.progressed = other_boot;
  death.image_taken = record_.image_in_life();
  for (const v1::RestartPoint& point : record_.points()) {
    if (point.number() > record_.numbers_before()) death.image_taken = true;
  }
  return death;
}

double SupervisedJob::SecondsOfLife() const {
  return SecondsSince(record_.life_began_ns(), record_.life_began_unix_ns());
}

int64_t SupervisedJob::LastSignOfLife() const {
  int64_t last = record_.life_began_unix_ns();
  for (const v1::RestartPoint& point : record_.points()) {
    if (point.number() > record_.numbers_before()) last = std::max(last, point.taken_unix_ns());
  }
  // What it wrote.
  for (const std::string& path : {record_.log(), JobFilePath()}) {
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

void SupervisedJob::SortPoints() {
  // Those of versions that gave no numbers come first, in the order that they have.
  std::stable_sort(
      record_.mutable_points()->begin(), record_.mutable_points()->end(),
      [](const v1::RestartPoint& a, const v1::RestartPoint& b) { return a.number() < b.number(); });
}

void SupervisedJob::NoteDeath(const Death& death, absl::string_view words) {
  auto* deaths = record_.mutable_deaths();
  const absl::Time died = absl::Now() - absl::Nanoseconds(since_death_ns_);
  deaths->Add(absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S", died, absl::LocalTimeZone()), " ",
                           supervise::Describe(death), words.empty() ? "" : ": ", words));
  std::rotate(deaths->begin(), deaths->end() - 1, deaths->end());
  if (deaths->size() > kDeathsKept) deaths->DeleteSubrange(kDeathsKept, deaths->size() - kDeathsKept);
}

// Of an image. No job comes to it.
constexpr uint64_t kGreatestNumber = uint64_t{1} << 48;

void SupervisedJob::FindPoints() {
  auto store = node_.OpenStore(Node::Access::kRead);
  auto images = store.ok() ? (*store)->List() : absl::StatusOr<std::vector<store::ImageInfo>>(store.status());
  if (!images.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("job '", name_, "': its images can't be listed: ", images.status().message()));
    return;
  }
  std::map<std::string, std::string> there;  // digests by name
  const Call own = OwnCall();
  for (const store::ImageInfo& image : *images) {
    if (node_.policy().MayUse(own.caller, image.owner)) there[image.reference] = image.digest;
  }
  absl::MutexLock lock(&mutex_);
  auto* points = record_.mutable_points();
  points->erase(std::remove_if(points->begin(), points->end(),
                               [&](const v1::RestartPoint& point) {
                                 auto it = there.find(point.image());
                                 return it == there.end() ||
                                        (!point.digest().empty() && point.digest() != it->second);
                               }),
                points->end());
  const std::string label = absl::StrCat(record_.submitted_unix_ns());
  std::set<std::string> known;
  for (v1::RestartPoint& point : *points) {
    known.insert(point.image());
    point.set_digest(there[point.image()]);
  }
  for (const store::ImageInfo& image : *images) {
    // The daemon may have died between the image and the record.
    auto it = image.labels.find(v1::kSupervisedLabel);
    if (it == image.labels.end() || it->second != label || image.owner != owner_) continue;
    if (known.count(image.reference) != 0 || v1::IsCopyLink(image.reference, image.labels)) continue;
    v1::RestartPoint* point = record_.add_points();
    point->set_image(image.reference);
    point->set_digest(image.digest);
    point->set_taken_unix_ns(image.created_unix_ns);
    // When is not known: as one that may hold the beginning of a death.
    if (record_.boot_id() == ThisBootId()) point->set_taken_ns(MonotonicNanos());
    // What came back from elsewhere somebody has named.
    point->set_ours(!image.labels.contains(v1::kOriginLabel) &&
                    !image.labels.contains(v1::kSupervisedAskedLabel));
    uint64_t number = 0;
    auto numbered = image.labels.find(v1::kSupervisedNumberLabel);
    // Labels of what came from elsewhere say what they like.
    if (numbered == image.labels.end() || !absl::SimpleAtoi(numbered->second, &number) ||
        number > kGreatestNumber)
      number = record_.last_number() + 1;
    point->set_number(number);
    record_.set_last_number(std::max(record_.last_number(), number));
    record_.set_had_points(true);
  }
  SortPoints();
}

void SupervisedJob::LogIfLeft(const v1::FileRollback& file) const {
  // Without a daemon the log is the terminal of who is told with the restart.
  if (file.action() != v1::FileRollback::LEFT || !node_.options().daemon) return;
  Log(LogLevel::kWarning,
      absl::StrCat("job '", name_, "': ", file.path(), " is left as it is: ", file.why()));
}

absl::StatusOr<RegisteredJob> SupervisedJob::RestoreFrom(const v1::RestartPoint& point,
                                                         v1::JobRestarted* restarted,
                                                         const std::string& log) {
  OpenJobFile();
  bool silent;
  {
    absl::MutexLock lock(&mutex_);
    silent = silent_images_.contains(point.digest());
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
  auto job = CatchNoMoreThreads([&] {
    return RestoreJob(node_, call, request, [&](const v1::JobEvent& event) {
      if (event.has_rolled_back()) {
        *restarted->mutable_files() = event.rolled_back().files();
        restarted->mutable_files()->MergeFrom(put_back.files());
      }
      for (const v1::FileRollback& file : event.rolled_back().files()) LogIfLeft(file);
      for (const std::string& warning : event.started().warnings())
        Log(LogLevel::kInfo, absl::StrCat("job '", name_, "': ", warning));
      return true;
    });
  });
  kept_staging_.LetKernelHaveIt();
  if (job.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      record_.set_log(job->record.log);
    }
    for (const auto& [file, warning] : WarnOfOthersCut(restarted->files(), ProcessTree(job->record.pid))) {
      if (cut_of_others_told_.insert(file).second) Warn(warning);
    }
  }
  return job;
}

void SupervisedJob::ForgetImagesOfHang() {
  std::vector<v1::RestartPoint> hanging;
  {
    absl::MutexLock lock(&mutex_);
    for (const v1::RestartPoint& point : record_.points()) {
      if (point.ours() && point.taken_ns() > hung_since_ns_) hanging.push_back(point);
    }
    // Better one that may hang than none: the oldest, which is the nearest to where it still got further. The
    // others hold no more work than that one, and would cost an attempt each.
    if (hanging.size() == static_cast<size_t>(record_.points_size()) && !hanging.empty())
      hanging.erase(hanging.begin());
  }
  RemoveImagesOf(hanging);
}

bool SupervisedJob::HasUnkeptImages() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(kept_for_, images_noted_) != images_noted_;
}

void SupervisedJob::KeepItsFiles(int64_t begins_with_unix_ns) {
  for (const std::string& warning : removed_.Keep(begins_with_unix_ns)) {
    if (image_warnings_told_.insert(WithoutNumbers(warning)).second) Warn(warning);
  }
}

void SupervisedJob::KeepItsFilesMeanwhile() { removed_.KeepMeanwhile(); }

void SupervisedJob::AwaitItsFilesKept() { removed_.AwaitKept(kKeepingMayHoldUp); }

void SupervisedJob::NoteFrozen() {
  absl::MutexLock lock(&mutex_);
  taking_frozen_ns_ = MonotonicNanos();
}

void SupervisedJob::ForgetItsFiles(bool ended) {
  int64_t oldest = INT64_MAX;
  {
    absl::MutexLock lock(&mutex_);
    // Others' images may stay for weeks.
    for (const v1::RestartPoint& point : record_.points()) {
      if (point.ours()) oldest = std::min(oldest, point.taken_unix_ns());
    }
    if (oldest == INT64_MAX && !record_.points().empty()) oldest = record_.points().rbegin()->taken_unix_ns();
  }
  if (oldest != INT64_MAX) removed_.Forget(oldest, ended);
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
    RK_ASSIGN_OR_RETURN(const std::unique_ptr<store::ImageReader> image, store->OpenImage(point.digest()));
    return restore::ReadJobManifest(*image);
  }();
  // Why it can't be read the restore tells.
  if (manifest.ok()) options = PlacesOf(*manifest, rollback);
  options.user = {owner_, OwnCall().caller.gid, OwnCall().caller.groups};
  options.image_unix_ns = point.taken_unix_ns();
  options.ended_unix_ns = died_unix_ns_;
  reopened_.LookFor(std::move(options));
}

std::optional<supervise::Tried> SupervisedJob::Tried() const {
  if (record_.from_image().empty()) return supervise::Tried{0, 0};  // what there is has come later
  size_t newer = 0;
  for (auto point = record_.points().rbegin(); point != record_.points().rend(); ++point, ++newer) {
    if (point->image() == record_.from_image() && point->number() >= record_.from_number())
      return supervise::Tried{newer, newer + 1};
    if (point->number() < record_.from_number()) break;
  }
  if (record_.from_number() == 0) return std::nullopt;  // of an earlier version
  return supervise::Tried{newer, newer};
}

RestartDecision SupervisedJob::DecideAfter(const Death& death) {
  absl::MutexLock lock(&mutex_);
  return restart_policy_.OnDeath(death, static_cast<size_t>(record_.points_size()), Tried());
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
  const std::string words = well || supervise::MayComeFromOutside(death) ? "" : LastWords(User(), log);
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
  if (const std::string hint = well ? "" : HintAtRemovedFiles(); !hint.empty()) Warn(hint);
  if (!well) TellOfFullLog();
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

bool SupervisedJob::Revive(RestartDecision decision, const std::string& how, const Stopwatch& since_death) {
  v1::JobRestarted passed_over;
  constexpr size_t kNone = SIZE_MAX;
  size_t unfit = kNone;  // the newest image that did not fit this machine, as so many back
  for (bool waits_for_machine = false;;) {
    size_t images;
    bool had_points;
    std::string newest;
    {
      absl::MutexLock lock(&mutex_);
      images = static_cast<size_t>(record_.points_size());
      if (images > 0) newest = record_.points(static_cast<int>(images) - 1).image();
      had_points = record_.had_points();
    }
    if (decision.action == RestartDecision::Action::kDone) {
      Finish(last_exit_, /*failed=*/false, how);
      return false;
    }
    const bool anew = decision.images_back >= images;
    const bool ends = decision.action == RestartDecision::Action::kGiveUp || (anew && had_points);
    std::string hint = ends ? HintAtRemovedFiles() : "";
    if (ends && hint.empty()) hint = HintAtFullLog();
    if (ends && unfit < images) {
      absl::MutexLock lock(&mutex_);
      decision = restart_policy_.BackTo(unfit, "none that is older leads further");
      waits_for_machine = true;
      continue;
    }
    if (decision.action == RestartDecision::Action::kGiveUp) {
      Finish(last_exit_, /*failed=*/true, absl::StrCat(decision.why, hint.empty() ? "" : "; ", hint));
      return false;
    }
    if (anew && had_points) {
      // It would do everything once more, over what it has left: nobody but its owner can want that.
      Finish(
          last_exit_, /*failed=*/true,
          absl::StrCat(
              decision.death,
              images == 0 ? "; its images are gone, and it does not begin anew by itself: start it once more "
                            "if it is to"
                          : absl::StrCat("; it gets no further from any image that it can go back to (",
                                         images, ", the newest ", newest,
                                         "), so that it is not restarted any more. When what it fails of "
                                         "is mended, `rekindle run --from ",
                                         newest, " …` goes on from there"),
              hint.empty() ? "" : "; ", hint));
      return false;
    }
    if (decision.wait_seconds > 0) NoteDecided();
    // Also without a wait: its end may have been asked for while that was decided.
    if (!Wait(decision.wait_seconds)) return EndWithoutLife();
    v1::JobEvent event;
    v1::JobRestarted* restarted = event.mutable_restarted();
    std::optional<v1::RestartPoint> point;
    if (!anew) {
      absl::MutexLock lock(&mutex_);
      point = record_.points(static_cast<int>(images - 1 - decision.images_back));
    }
    const std::string image = point ? point->image() : "";
    SetPhase("restarting");
    Log(LogLevel::kInfo,
        absl::StrCat("job '", name_, "' goes on from ", anew ? "its beginning" : image, ": ", decision.why));
    absl::StatusOr<RegisteredJob> life = TryToRevive(point, waits_for_machine, restarted);
    if (absl::IsCancelled(life.status()) && !Wait(0)) return EndWithoutLife();
    if (life.ok()) {
      BeginLife(*life);
      if (job_file_) job_file_->Release(true).IgnoreError();
      restarted->MergeFrom(passed_over);
      restarted->set_image(image);
      restarted->set_why(how);
      restarted->set_pid(life->record.pid);
      restarted->set_seconds(since_death.seconds());
      if (!anew) {
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
      events_.Send(event);
      return true;
    }
    KillAll();
    const std::string problem = absl::StrCat("it could not be brought back from ",
                                             anew ? "its beginning" : image, ": ", life.status().message());
    if (!anew) passed_over.add_passed_over(absl::StrCat(image, ": ", life.status().message()));
    Log(LogLevel::kError, absl::StrCat("job '", name_, "': ", problem));
    bool leave;
    {
      absl::MutexLock lock(&mutex_);
      leave = leave_;
      if (!leave) record_.set_last_error(problem);
    }
    if (leave) return EndWithoutLife();
    Save();
    if (waits_for_machine) {  // it fits, and that was not all
      unfit = kNone;
      waits_for_machine = false;
    } else if (!anew && unfit == kNone && HindranceOf(life.status()) == Hindrance::kOtherMachine) {
      unfit = decision.images_back;
    }
    Death death;
    death.kind = Death::Kind::kRestoreFailed;
    decision = DecideAfter(death);
  }
}

void SupervisedJob::NoteDecided() {
  {
    absl::MutexLock lock(&mutex_);
    record_.set_coming_to_life(false);
    record_.mutable_restarts()->set_decided(true);
  }
  Save();
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
  double next_wait = kFirstWaitSeconds;
  std::string told;
  for (int moments = 1;;) {
    std::vector<std::string> warnings;
    absl::StatusOr<RegisteredJob> life =
        point ? RestoreFrom(*point, restarted) : StartFromBeginning(UniqueFd(), &warnings);
    for (const std::string& warning : warnings)
      Log(LogLevel::kWarning, absl::StrCat("job '", name_, "': ", warning));
    if (life.ok()) return life;
    double wait = kBetweenTriesSeconds;
    Hindrance hindrance = HindranceOf(life.status());
    // What is in a store that has just gone is missing.
    if (absl::IsUnavailable(node_.CheckStoreIsThere())) hindrance = Hindrance::kMachine;
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
    }
    const std::string problem = absl::StrCat(kNotYet, life.status().message());
    const std::string log = absl::StrCat("job '", name_, "': ", problem);
    if (problem != told) {
      v1::JobEvent waits;
      waits.mutable_waits()->set_why(ToUtf8(life.status().message()));
      waits.mutable_waits()->set_down(true);
      Tell(waits, LogLevel::kWarning, log);
    } else if (hindrance != Hindrance::kOtherMachine) {
      Log(LogLevel::kWarning, log);
    }
    told = problem;
    restarted->set_hindered_by(std::string(life.status().message()));
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
