// A supervised job that another daemon has left, running or dead: this one takes it over.
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/exit_of_others.h"
#include "daemon/supervised_job.h"
#include "daemon/supervised_record.h"

namespace rekindle::daemon {
namespace {

constexpr double kTryAgainSeconds = 1;

}  // namespace

std::shared_ptr<SupervisedJob> SupervisedJob::TakeOver(Node& node, v1::SupervisedJobRecord record,
                                                       SupervisedHold hold) {
  std::shared_ptr<SupervisedJob> job(new SupervisedJob(node, std::move(record), std::move(hold)));
  job->thread_ = std::thread(&SupervisedJob::LoopAfterTakingOver, job.get());
  return job;
}

void SupervisedJob::LoopAfterTakingOver() {
  bool other_boot, at_boot, stopping;
  {
    absl::MutexLock lock(&mutex_);
    other_boot = record_.boot_id() != ThisBootId();
    if (other_boot) {
      ForgetSignal();
      record_.clear_life_began_ns();
      for (v1::RestartPoint& point : *record_.mutable_points()) point.clear_taken_ns();
    }
    stopping = record_.stopping();
    if (stopping) {
      stop_ = true;
      stop_grace_ = absl::Seconds(record_.stop_grace_seconds());
    }
  }
  FindPoints();
  for (std::string problem;;) {
    const absl::StatusOr<bool> adopted = AdoptLife();
    if (adopted.ok() && !*adopted) break;
    if (adopted.ok()) {
      if (!problem.empty()) {
        absl::MutexLock lock(&mutex_);
        record_.clear_last_error();
      }
      ForgetLeftLife();
      Log(LogLevel::kInfo,
          absl::StrCat("job '", name_, "' runs; it is ", stopping ? "stopped" : "supervised again"));
      return Loop();
    }
    problem = absl::StrCat("it runs and can't be watched yet: ", adopted.status().message());
    Log(LogLevel::kError, absl::StrCat("job '", name_, "': ", problem));
    {
      absl::MutexLock lock(&mutex_);
      record_.set_last_error(problem);
    }
    if (Wait(kTryAgainSeconds)) continue;
    {
      absl::MutexLock lock(&mutex_);
      if (leave_) return;
    }
    absl::SleepFor(absl::Seconds(kTryAgainSeconds));
  }
  const std::optional<JobRecord> end = FindEnd();
  if (stopping) {
    KillAll();
    return Finish(end ? *end->exit : ExitState{0, SIGKILL}, /*failed=*/false, "it was stopped");
  }
  bool decided;
  std::string newest;
  {
    absl::MutexLock lock(&mutex_);
    at_boot = record_.policy().at_boot();
    decided = record_.restarts().decided();
    if (!record_.points().empty()) newest = record_.points().rbegin()->image();
  }
  const bool is_done = !decided && end && end->exit->code == 0 && end->exit->signal == 0;
  if (other_boot && !at_boot && !is_done) {
    return Finish(
        {0, SIGKILL}, /*failed=*/true,
        absl::StrCat("the machine was restarted, and the job was not to be resumed then",
                     newest.empty() ? ""
                                    : absl::StrCat("; 'rekindle run --from ", newest,
                                                   " --every 5m --restarts 10' goes on from its last image"),
                     ". With --at-boot it would have gone on by itself"));
  }
  // Where nobody has seen how it ended, that it did well is not to be said of it.
  last_exit_ = end ? *end->exit : ExitState{0, SIGKILL};
  const bool is_back =
      decided ? CarryOutDecision()
              : BringBack(end ? DeathBy(*end->exit, end->exited_unix_ns) : DeathWithoutWitness(other_boot));
  ForgetLeftLife();
  if (is_back) Loop();
}

std::optional<JobRecord> SupervisedJob::FindLife() const {
  JobRecord life;
  {
    absl::MutexLock lock(&mutex_);
    if (record_.coming_to_life()) return std::nullopt;
    life.name = name_;
    life.pid = record_.pid();
    life.start_ticks = record_.start_ticks();
    life.boot_id = record_.boot_id();
  }
  if (life.pid > 0 && JobRegistry::Lives(life)) return life;
  absl::StatusOr<JobRecord> other = node_.jobs().FindByName(name_);
  if (!other.ok() || !JobRegistry::Lives(*other) || other->mark != mark_ || !other->instance.empty() ||
      other->owner != owner_) {
    return std::nullopt;
  }
  return *std::move(other);
}

std::optional<JobRecord> SupervisedJob::FindEnd() const {
  absl::StatusOr<JobRecord> ended = node_.jobs().FindByName(name_);
  absl::MutexLock lock(&mutex_);
  if (record_.coming_to_life() || !ended.ok() || !ended->exit || ended->pid != record_.pid() ||
      ended->start_ticks != record_.start_ticks() || ended->boot_id != record_.boot_id()) {
    return std::nullopt;
  }
  return *std::move(ended);
}

absl::StatusOr<bool> SupervisedJob::AdoptLife() {
  const std::optional<JobRecord> life = FindLife();
  if (!life) return false;
  absl::StatusOr<UniqueFd> pidfd = OpenProcess(life->pid);
  if (absl::IsNotFound(pidfd.status())) return false;
  RK_RETURN_IF_ERROR(Annotate(pidfd.status(), "watching a supervised job"));
  ExpectExitOf(life->pid);
  if (!JobRegistry::Lives(*life)) return false;
  ListLife(*life);
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const JobEnd> end,
                      node_.reaper().Watch(
                          *std::move(pidfd),
                          [pid = life->pid, unknown = end_unknown_](int ended) {
                            return ExitOfStranger(ended, pid, unknown.get());
                          },
                          [&node = node_, life = *life, unknown = end_unknown_](const ExitState& exit) {
                            if (unknown->load()) return;
                            const absl::Status recorded = node.jobs().SetExit(life, exit);
                            if (!recorded.ok()) Log(LogLevel::kWarning, recorded.message());
                          }));
  Await(std::move(end));
  saw_life_ = true;
  bool is_another;
  {
    absl::MutexLock lock(&mutex_);
    is_another = life->pid != record_.pid() || life->start_ticks != record_.start_ticks();
    if (is_another) {
      NoteLife(*life);
      ForgetSignal();
      record_.set_life_began_unix_ns(life->started_unix_ns);
      record_.clear_life_began_ns();
      record_.clear_from_image();
      record_.clear_from_number();
      for (const v1::RestartPoint& point : record_.points()) {
        if (point.image() != life->image) continue;
        record_.set_from_image(point.image());
        record_.set_from_number(point.number());
      }
    }
  }
  if (is_another) Save();
  OpenJobFile();
  ResetWatch();
  TellOfOtherFolder();
  return true;
}

bool SupervisedJob::ListAgain() {
  const std::optional<JobRecord> life = FindLife();
  return life && ListLife(*life);
}

bool SupervisedJob::ListLife(const JobRecord& life) {
  const absl::StatusOr<JobRecord> listed = node_.jobs().FindByName(name_);
  const bool is_gone = absl::IsNotFound(listed.status()) || (listed.ok() && !JobRegistry::Lives(*listed));
  if (!is_gone) return false;
  JobRecord record = life;
  {
    absl::MutexLock lock(&mutex_);
    record.command = absl::StrJoin(record_.argv(), " ");
    record.owner = owner_;
    record.started_unix_ns = record_.life_began_unix_ns();
    record.image = record_.points().empty() ? record_.from_image() : record_.points().rbegin()->image();
    record.log = record_.log();
    record.mark = mark_;
  }
  const absl::Status added = node_.jobs().Add(std::move(record), /*unique_name=*/false).status();
  if (added.ok()) return true;
  Log(LogLevel::kError, absl::StrCat("job '", name_,
                                     "' runs, but can't be listed, so that no image of it can be "
                                     "taken: ",
                                     added.message()));
  return false;
}

void SupervisedJob::NoteLeftLife() {
  absl::MutexLock writing(&writing_);
  if (!hold_ || !end_ || end_->WaitFor(absl::ZeroDuration())) return;
  v1::SupervisedJobRecord record;
  {
    absl::MutexLock lock(&mutex_);
    if (record_.ended() || record_.stopping() || !HasLife() || !record_.image_in_life()) return;
    record = record_;
  }
  absl::Status noted = node_.CheckStoreIsThere();
  if (noted.ok()) noted = WriteLeftLife(directory_, record);
  if (noted.ok()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("job '", name_, "': ", noted.message(),
                   "; if it ends with the daemon's container, that counts for --restarts"));
}

void SupervisedJob::ForgetLeftLife() {
  const absl::Status removed = RemoveLeftLife(directory_, name_);
  if (!removed.ok()) Log(LogLevel::kWarning, absl::StrCat("job '", name_, "': ", removed.message()));
}

}  // namespace rekindle::daemon
