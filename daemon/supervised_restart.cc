// A supervised job that has died: whether, when and from where it goes on.
#include <signal.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/timeline.h"
#include "daemon/oom_kill.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_job.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"
#include "dedup_store/store.h"
#include "rekindle/v1/image_layout.h"
#include "restore/lock_check.h"

namespace rekindle::daemon {
namespace {

using supervise::Death;
using supervise::RestartDecision;

constexpr int kDeathsKept = 10;
// What may be different in a moment: memory that is short, PIDs of what is just ending.
constexpr int kTries = 6;
constexpr double kBetweenTriesSeconds = 5;

double SecondsBetween(int64_t from_unix_ns, int64_t to_unix_ns) {
  return std::max(0.0, static_cast<double>(to_unix_ns - from_unix_ns) * 1e-9);
}

bool MayBeOtherwiseSoon(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsAlreadyExists(status) ||
         absl::StrContains(status.message(), "needs its own PIDs back") ||
         absl::StrContains(status.message(), restore::kLocksInUse);
}

}  // namespace

Death SupervisedJob::TakeDeath() {
  const ExitState exit = end_->WaitFor(absl::ZeroDuration()).value_or(ExitState{});
  last_exit_ = exit;
  Death death;
  absl::MutexLock lock(&mutex_);
  AddRunTime();
  last_run_ = 0;
  death.lived_seconds = SecondsBetween(record_.life_began_unix_ns(), UnixNanos());
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
  if (death.kind == Death::Kind::kExited || hung_) {
    // Of its own doing: an image that may hold the beginning of this end is no progress.
    const int64_t sound_before = hung_ ? hung_since_unix_ns_ : UnixNanos() - kProvenNanos;
    for (const v1::RestartPoint& point : record_.points()) {
      if (point.taken_unix_ns() > record_.life_began_unix_ns() && point.taken_unix_ns() <= sound_before)
        death.image_taken = true;
    }
  } else {
    death.image_taken = record_.image_in_life();
  }
  return death;
}

void SupervisedJob::NoteDeath(const Death& death, int64_t died_unix_ns) {
  auto* deaths = record_.mutable_deaths();
  deaths->Add(absl::StrCat(
      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(died_unix_ns), absl::LocalTimeZone()), " ",
      supervise::Describe(death)));
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
  std::set<std::string> there;
  absl::MutexLock lock(&mutex_);
  const std::string label = absl::StrCat(record_.submitted_unix_ns());
  std::set<std::string> known;
  for (const v1::RestartPoint& point : record_.points()) known.insert(point.image());
  for (const store::ImageInfo& image : *images) {
    there.insert(image.reference);
    // The daemon may have died between the image and the record.
    auto it = image.labels.find(v1::kSupervisedLabel);
    if (it == image.labels.end() || it->second != label || image.owner != owner_) continue;
    if (known.count(image.reference) != 0) continue;
    v1::RestartPoint* point = record_.add_points();
    point->set_image(image.reference);
    point->set_taken_unix_ns(image.created_unix_ns);
    point->set_ours(true);
    record_.set_had_points(true);
  }
  auto* points = record_.mutable_points();
  points->erase(
      std::remove_if(points->begin(), points->end(),
                     [&](const v1::RestartPoint& point) { return there.count(point.image()) == 0; }),
      points->end());
  std::sort(points->begin(), points->end(), [](const v1::RestartPoint& a, const v1::RestartPoint& b) {
    return a.taken_unix_ns() < b.taken_unix_ns();
  });
}

absl::StatusOr<RegisteredJob> SupervisedJob::RestoreFrom(const std::string& image,
                                                         v1::JobRestarted* restarted) {
  OpenJobFile();
  if (job_file_) job_file_->MarkRestored().IgnoreError();
  v1::RestoreRequest request;
  request.set_image(image);
  request.set_name(name_);
  request.set_detach(true);
  {
    absl::MutexLock lock(&mutex_);
    *request.mutable_rollback() = record_.policy().rollback();
    record_.set_coming_to_life(true);
    record_.set_from_image(image);
    record_.set_boot_id(JobRegistry::ThisBoot());
    // A full disk must not keep it from coming back: nothing else of this needs room there.
    Save();
  }
  Call call = OwnCall();
  call.in_memory = &kept_staging_.image();
  auto job = RestoreJob(node_, call, request, [&](const v1::JobEvent& event) {
    if (event.has_rolled_back()) *restarted->mutable_files() = event.rolled_back().files();
    for (const std::string& warning : event.started().warnings())
      Log(LogLevel::kInfo, absl::StrCat("job '", name_, "': ", warning));
    return true;
  });
  kept_staging_.LetKernelHaveIt();
  return job;
}

void SupervisedJob::ForgetImagesOfHang() {
  std::vector<std::string> hanging;
  {
    absl::MutexLock lock(&mutex_);
    for (const v1::RestartPoint& point : record_.points()) {
      if (point.ours() && point.taken_unix_ns() > hung_since_unix_ns_) hanging.push_back(point.image());
    }
    // Better one that may hang than none.
    if (hanging.size() == static_cast<size_t>(record_.points_size())) hanging.clear();
  }
  RemoveImagesOf(hanging);
}

bool SupervisedJob::BringBack(Death death, int64_t died_unix_ns) {
  KillAll();
  FindPoints();
  if (death.kind == Death::Kind::kHung) ForgetImagesOfHang();
  const std::string how = supervise::Describe(death);
  bool meant;
  {
    absl::MutexLock lock(&mutex_);
    const bool well = death.kind == Death::Kind::kExited && death.code == 0;
    if (!well) NoteDeath(death, died_unix_ns);
    meant = !well && MonotonicNanos() < record_.will_end_until_ns();
    if (!meant && !well) {
      const int64_t from = record_.points().empty()
                               ? record_.life_began_unix_ns()
                               : std::max(record_.points().rbegin()->taken_unix_ns(),
                                          record_.image_in_life() ? 0 : record_.life_began_unix_ns());
      record_.set_lost_seconds(record_.lost_seconds() + SecondsBetween(from, died_unix_ns));
      interval_.OnFailure();
    }
    phase_ = "waiting";
    Save();
  }
  if (meant) {
    Finish(last_exit_, /*failed=*/false, absl::StrCat(how, ", as was asked for"));
    return false;
  }

  v1::JobRestarted passed_over;
  for (;;) {
    size_t images;
    bool had_points;
    {
      absl::MutexLock lock(&mutex_);
      images = static_cast<size_t>(record_.points_size());
      had_points = record_.had_points();
    }
    const RestartDecision decision = restart_policy_.OnDeath(death, images);
    if (decision.action == RestartDecision::Action::kDone) {
      Finish(last_exit_, /*failed=*/false, how);
      return false;
    }
    if (decision.action == RestartDecision::Action::kGiveUp) {
      Finish(last_exit_, /*failed=*/true, decision.why);
      return false;
    }
    const bool anew = decision.images_back >= images;
    if (anew && had_points) {
      // It would do everything once more, over what it has left: nobody but its owner can want that.
      Finish(
          last_exit_, /*failed=*/true,
          absl::StrCat(decision.why, images == 0 ? "; its images are gone" : "; no image of it leads further",
                       ": start it anew if it is to begin from its beginning"));
      return false;
    }
    if (!Wait(decision.wait_seconds)) return EndWithoutLife();
    v1::JobEvent event;
    v1::JobRestarted* restarted = event.mutable_restarted();
    std::string image;
    if (!anew) {
      absl::MutexLock lock(&mutex_);
      image = record_.points(static_cast<int>(images - 1 - decision.images_back)).image();
    }
    SetPhase("restarting");
    Log(LogLevel::kInfo,
        absl::StrCat("job '", name_, "' goes on from ", anew ? "its beginning" : image, ": ", decision.why));
    absl::StatusOr<RegisteredJob> life = absl::InternalError("not tried");
    for (int tries = 0; tries < kTries; ++tries) {
      life = anew ? StartFromBeginning(UniqueFd()) : RestoreFrom(image, restarted);
      if (life.ok() || !MayBeOtherwiseSoon(life.status())) break;
      Log(LogLevel::kWarning,
          absl::StrCat("job '", name_, "' can't be brought back yet: ", life.status().message()));
      if (absl::IsResourceExhausted(life.status())) node_.supervisor().CollectGarbageSoon(0);
      // Another job has its name: no fault of the image, and over when that one ends.
      if (absl::IsAlreadyExists(life.status())) {
        tries = -1;
        absl::MutexLock lock(&mutex_);
        record_.set_last_error(std::string(life.status().message()));
      }
      if (!Wait(kBetweenTriesSeconds)) return EndWithoutLife();
      KillAll();
    }
    if (life.ok()) {
      BeginLife(*life);
      if (job_file_) job_file_->Release(true).IgnoreError();
      restarted->MergeFrom(passed_over);
      restarted->set_image(image);
      restarted->set_why(how);
      restarted->set_pid(life->record.pid);
      restarted->set_seconds(SecondsBetween(died_unix_ns, UnixNanos()));
      {
        absl::MutexLock lock(&mutex_);
        record_.set_restart_count(record_.restart_count() + 1);
        restarted->set_restart(record_.restart_count());
        Save();
      }
      events_.Send(event);
      return true;
    }
    KillAll();
    const std::string problem = absl::StrCat("it could not be brought back from ",
                                             anew ? "its beginning" : image, ": ", life.status().message());
    if (!anew) passed_over.add_passed_over(absl::StrCat(image, ": ", life.status().message()));
    Log(LogLevel::kError, absl::StrCat("job '", name_, "': ", problem));
    {
      absl::MutexLock lock(&mutex_);
      if (leave_) return false;
      record_.set_last_error(problem);
      Save();
    }
    death = Death();
    death.kind = Death::Kind::kRestoreFailed;
  }
}

bool SupervisedJob::EndWithoutLife() {
  bool stop;
  {
    absl::MutexLock lock(&mutex_);
    stop = stop_ && !leave_;
  }
  if (stop) Finish(last_exit_, /*failed=*/false, "it was stopped while it waited to be brought back");
  return false;
}

}  // namespace rekindle::daemon
