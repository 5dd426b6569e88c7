#include "daemon/supervisor.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/held_lock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/record_file.h"
#include "base/status.h"
#include "base/timeline.h"
#include "daemon/copy_notes.h"
#include "daemon/node.h"
#include "daemon/old_logs.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_record.h"

namespace rekindle::daemon {
namespace {

// How soon a job is taken over whose supervisor has died.
constexpr absl::Duration kLookAtOthers = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
// Jobs of other machines may be many, and their records far away.
constexpr int64_t kLetOthersBeNanos = 60'000'000'000;

constexpr int64_t kLookAtLogsNanos = 3600 * 1'000'000'000LL;

// Of a file's content: it is replaced, never changed.
std::pair<uint64_t, int64_t> StampOf(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return {0, 0};
  return {info.st_ino, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

Supervisor::Supervisor(Node& node)
    : node_(node), garbage_([&node] {
        v1::CollectGarbageResponse response;
        return CollectGarbage(node, /*our own*/ Call(), v1::CollectGarbageRequest(), &response);
      }) {}

std::string Supervisor::directory() const { return SupervisedDirectory(node_.options().store); }

absl::Status Supervisor::LockJobs(absl::Duration patience) {
  RK_RETURN_IF_ERROR(node_.CheckStoreIsThere());
  absl::MutexLock lock(&mutex_);
  // Of this machine: others that share the store have theirs.
  const std::string machine = ThisMachineId();
  const std::string path = absl::StrCat(directory(), "/.lock", machine.empty() ? "" : "-", machine);
  if (lock_.valid() && IsFileAt(lock_, path)) return absl::OkStatus();
  // The store is another one now, or mounted anew.
  lock_.Reset();
  RK_RETURN_IF_ERROR(MakeSupervisedDirectory(directory()));
  absl::StatusOr<UniqueFd> held = LockFile(path, LOCK_EX | LOCK_NB);
  for (const Deadline deadline(patience); absl::IsUnavailable(held.status()) && !deadline.passed();) {
    absl::SleepFor(kLookAgain);
    held = LockFile(path, LOCK_EX | LOCK_NB);
  }
  if (absl::IsUnavailable(held.status())) {
    return absl::UnavailableError(absl::StrCat("another daemon supervises the jobs of the store ",
                                               node_.options().store, ": ask that one, or end it"));
  }
  RK_RETURN_IF_ERROR(held.status());
  lock_ = *std::move(held);
  RemoveAbandonedRecords(directory());
  return absl::OkStatus();
}

absl::Status Supervisor::Begin() {
  const absl::Status locked = LockJobs(kForkMayTake);
  if (locked.ok()) TakeOverAll();
  BeginCopying();
  absl::MutexLock lock(&mutex_);
  if (!watcher_.joinable() && !stopping_) watcher_ = std::thread(&Supervisor::WatchOthersLoop, this);
  return locked;
}

void Supervisor::BeginCopying() {
  absl::MutexLock lock(&mutex_);
  if (copies_ != nullptr || stopping_) return;
  CopyFollowers::Asks asks;
  asks.plans = [this] { return CopyPlans(); };
  asks.states = [this] { return CopyStatesFor(node_, Call()); };
  asks.tell = [this](const CopyPlan& plan, const std::string& trouble) {
    if (const std::shared_ptr<SupervisedJob> job = Get(plan.job)) job->TellOfCopies(plan.to.place(), trouble);
  };
  copies_ = std::make_unique<CopyFollowers>(node_.options(), std::move(asks));
}

void Supervisor::WatchOthersLoop() {
  int64_t look_at_logs = 0;
  for (;;) {
    watcher_wakeup_.WaitFor(kLookAtOthers);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    if (LockJobs().ok()) TakeOverAll();
    for (const auto& job : Jobs()) job->TidyUpEnd();
    ForgetLongEnded();
    if (MonotonicNanos() < look_at_logs) continue;
    look_at_logs = MonotonicNanos() + kLookAtLogsNanos;
    RemoveOldLogs();
  }
}

void Supervisor::RemoveOldLogs() {
  const NodeOptions& options = node_.options();
  // What can't be known now may be a job that has one of them.
  const auto jobs = node_.jobs().List();
  const auto supervised = ListSupervisedRecords(directory());
  const LogBounds& bounds = options.log_bounds;
  if ((bounds.age == absl::ZeroDuration() && bounds.bytes == 0) || !jobs.ok() || !supervised.ok() ||
      !node_.CheckStoreIsThere().ok()) {
    return;
  }
  std::set<std::string> logs, unknown;
  for (const JobRecord& job : *jobs) logs.insert(job.log);
  for (const std::string& name : *supervised) {
    const absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
    if (record.ok()) {
      logs.insert(record->log());
    } else if (!absl::IsNotFound(record.status())) {
      unknown.insert(name);
    }
  }
  const size_t removed = daemon::RemoveOldLogs(options.log_directory, bounds, [&](const NamedLog& named) {
    return logs.contains(absl::StrCat(options.log_directory, "/", named.log)) || unknown.contains(named.job);
  });
  if (removed > 0) {
    Log(LogLevel::kInfo,
        absl::StrCat(removed, removed == 1 ? " log" : " logs", " of ended jobs removed from ",
                     options.log_directory,
                     ", which were too old (--log-days) or took too much room (--log-limit)"));
  }
}

void Supervisor::ForgetLongEnded() {
  std::vector<std::shared_ptr<SupervisedJob>> ended = Jobs();
  std::erase_if(ended, [](const auto& job) { return !job->EndedBefore(absl::InfiniteFuture()); });
  std::sort(ended.begin(), ended.end(),
            [](const auto& a, const auto& b) { return a->EndedAt() > b->EndedAt(); });
  std::map<uid_t, size_t> of_each;
  for (const auto& job : ended) {
    if (++of_each[job->owner()] <= kMostEndedOfOne && !job->EndedBefore(absl::Now() - kKeepEnded)) continue;
    // Somebody may just be about to give its name to another job.
    absl::StatusOr<SupervisedHold> hold = SupervisedHold::Take(directory(), job->name());
    if (!hold.ok()) continue;
    absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), job->name());
    const bool its =
        record.ok() && record->ended() && record->submitted_unix_ns() == job->submitted_unix_ns();
    if (its) {
      RemoveSupervisedRecord(directory(), job->name()).IgnoreError();
      hold->Remove();
    }
    absl::MutexLock lock(&mutex_);
    auto it = jobs_.find(job->name());
    if (it != jobs_.end() && it->second == job) jobs_.erase(it);
    if (its) told_.erase(job->name()), settled_.erase(job->name());
  }
}

void Supervisor::Tell(const std::string& name, const std::string& what) {
  absl::MutexLock lock(&mutex_);
  std::string& told = told_[name];
  if (told == what) return;
  told = what;
  Log(LogLevel::kWarning, what);
}

void Supervisor::TakeOverAll() {
  for (const std::string& name : ListSupervisedRecords(directory()).value_or(std::vector<std::string>())) {
    {
      absl::MutexLock lock(&mutex_);
      auto other = of_others_.find(name);
      if (other != of_others_.end() && MonotonicNanos() < other->second) continue;
    }
    const std::pair<uint64_t, int64_t> stamp = StampOf(SupervisedRecordPath(directory(), name));
    // Before the others: one that has just been started is among these before it is here no more.
    if (starting_.HasName(name)) continue;
    {
      absl::MutexLock lock(&mutex_);
      auto it = jobs_.find(name);
      if (it != jobs_.end() && !it->second->Ended()) continue;
      auto settled = settled_.find(name);
      if (settled != settled_.end() && settled->second == stamp) continue;
    }
    const absl::Status taken = TakeOver(name);
    if (absl::IsFailedPrecondition(taken)) {
      if (SupervisedHold::CheckIsFree(directory(), name).ok())
        Tell(name, absl::StrCat(taken.message(), " (nobody supervises it now)"));
      // One of a newer version may be this machine's, and is looked at again soon.
      if (!ReadSupervisedRecord(directory(), name).ok()) continue;
      absl::MutexLock lock(&mutex_);
      of_others_[name] = MonotonicNanos() + kLetOthersBeNanos;
      continue;
    }
    if (absl::IsAlreadyExists(taken)) {
      Tell(name, absl::StrCat(taken.message(), "; it is taken over when that process ends"));
      continue;
    }
    // What the file says stays so, or its name; everything else may pass, or go with what hinders it.
    const bool lasts = absl::IsDataLoss(taken) || absl::IsInvalidArgument(taken) || absl::IsNotFound(taken);
    if (!taken.ok() && !lasts) {
      Tell(name, absl::StrCat("supervised job '", name, "' is taken over later: ", taken.message()));
      continue;
    }
    if (!taken.ok()) Tell(name, absl::StrCat("a supervised job is not known any more: ", taken.message()));
    absl::MutexLock lock(&mutex_);
    auto it = jobs_.find(name);
    if (it == jobs_.end() || it->second->Ended()) settled_[name] = stamp;
  }
}

absl::Status Supervisor::TakeOver(const std::string& name) {
  RK_RETURN_IF_ERROR(CheckJobName(name));
  if (!PathExists(SupervisedRecordPath(directory(), name)))
    return absl::NotFoundError(absl::StrCat("there is no supervised job named '", name, "'"));
  // Before its hold is asked for: that is its machine's, or the newer version's, which may be about to take
  // it.
  absl::StatusOr<v1::SupervisedJobRecord> seen = ReadSupervisedRecord(directory(), name);
  if (absl::IsFailedPrecondition(seen.status())) return seen.status();
  if (seen.ok() && !seen->ended()) RK_RETURN_IF_ERROR(CheckIsOfThisMachine(directory(), *seen));
  RK_ASSIGN_OR_RETURN(SupervisedHold hold, SupervisedHold::Take(directory(), name));
  // Now it is what its last supervisor has left.
  absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
  RK_RETURN_IF_ERROR(record.status());
  std::shared_ptr<SupervisedJob> job;
  if (!record->ended()) {
    RK_ASSIGN_OR_RETURN(job, CatchNoMoreThreads([&]() -> absl::StatusOr<std::shared_ptr<SupervisedJob>> {
                          return SupervisedJob::TakeOver(node_, *std::move(record), std::move(hold));
                        }));
  } else if (absl::Now() - absl::FromUnixNanos(record->ended_unix_ns()) > kKeepEnded) {
    RemoveSupervisedRecord(directory(), name).IgnoreError();
    hold.Remove();
    return absl::OkStatus();
  } else {
    job = SupervisedJob::Remember(node_, *std::move(record));
  }
  std::shared_ptr<SupervisedJob> before;  // ended without the lock
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<SupervisedJob>& known = jobs_[name];
  // Those who follow it are told its end by the one that we had.
  if (known != nullptr && job->Ended() && known->submitted_unix_ns() == job->submitted_unix_ns())
    return absl::OkStatus();
  before = std::exchange(known, std::move(job));
  return absl::OkStatus();
}

std::shared_ptr<SupervisedJob> Supervisor::Get(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  auto it = jobs_.find(name);
  return it == jobs_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<SupervisedJob>> Supervisor::Jobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<SupervisedJob>> jobs;
  for (const auto& [name, job] : jobs_) jobs.push_back(job);
  return jobs;
}

absl::Status Supervisor::CheckNameIsFree(const std::string& name) const {
  const std::shared_ptr<SupervisedJob> job = Get(name);
  if (job == nullptr || job->Ended()) return SupervisedHold::CheckIsFree(directory(), name);
  return absl::AlreadyExistsError(absl::StrCat(
      "a supervised job named '", name,
      "' has not ended yet: choose another --name, or, if it is yours, end it with 'rekindle stop ", name,
      "'"));
}

absl::Status Supervisor::CheckNameIsFreeFor(const Caller& caller, const std::string& name) const {
  const absl::Status free = CheckNameIsFree(name);
  if (free.ok()) return free;
  const absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
  const bool may =
      record.ok() ? node_.policy().MayUse(caller, record->uid()) : node_.policy().IsAdmin(caller);
  if (may) return free;
  return absl::AlreadyExistsError(absl::StrCat(
      "a supervised job named '", name, "', which is not yours, has not ended yet: choose another --name"));
}

std::vector<CopyPlan> Supervisor::CopyPlans() const {
  std::vector<CopyPlan> plans;
  for (const auto& job : Jobs()) {
    if (std::optional<CopyPlan> plan = job->PlanOfCopies()) plans.push_back(*std::move(plan));
  }
  return plans;
}

std::map<std::string, double> Supervisor::PeriodsOfImages() const {
  std::map<std::string, double> periods;
  const auto add = [&](const std::string& images, double seconds) {
    double& known = periods[images];
    known = std::max(known, seconds);
  };
  std::set<std::string> ours;
  for (const auto& job : Jobs()) {
    ours.insert(job->name());
    if (const auto [images, seconds] = job->PeriodOfImages(); seconds > 0) add(images, seconds);
  }
  for (const std::string& name : ListSupervisedRecords(directory()).value_or(std::vector<std::string>())) {
    if (ours.contains(name)) continue;
    const absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
    if (!record.ok() || record->ended() || !(record->policy().every_seconds() > 0)) continue;
    const std::string& given = record->policy().image_name();
    add(given.empty() ? ImageNameOf(name) : given, record->policy().every_seconds());
  }
  return periods;
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervisor::Find(const std::string& name) const {
  if (std::shared_ptr<SupervisedJob> job = Get(name)) return job;
  if (CheckJobName(name).ok()) {
    const absl::Status read = ReadSupervisedRecord(directory(), name).status();
    if (!read.ok() && !absl::IsNotFound(read)) {
      return absl::NotFoundError(
          absl::StrCat("supervised job '", name, "' is not known here: ", read.message()));
    }
  }
  return absl::NotFoundError(absl::StrCat("there is no supervised job named '", name,
                                          "': see 'rekindle ps'; 'rekindle run --every 5m' starts one"));
}

std::vector<v1::Job> Supervisor::List(const ProcessChildren& all) const {
  std::vector<v1::Job> jobs;
  for (const auto& job : Jobs()) jobs.push_back(job->Describe(&all));
  // What others supervise, or have ended with, as its record has it.
  for (const std::string& name : ListSupervisedRecords(directory()).value_or(std::vector<std::string>())) {
    if (Get(name) != nullptr) continue;
    absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
    if (!record.ok() || IsOtherMachine(record->machine())) continue;
    if (record->ended() || !SupervisedHold::CheckIsFree(directory(), name).ok())
      jobs.push_back(SupervisedJob::Remember(node_, *std::move(record))->Describe(&all));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::Job& a, const v1::Job& b) { return a.started_unix_ns() > b.started_unix_ns(); });
  return jobs;
}

std::set<std::string> Supervisor::NamesOf(uid_t owner) const {
  std::set<std::string> names;
  for (const auto& job : Jobs()) {
    if (job->owner() == owner && !job->Ended()) names.insert(job->name());
  }
  return names;
}

void Supervisor::WillEnd(const std::string& name, int signal) {
  if (std::shared_ptr<SupervisedJob> job = Get(name)) job->WillEnd(signal);
}

std::shared_ptr<SupervisedJob> Supervisor::FindRunning(const std::string& name, pid_t pid) const {
  std::shared_ptr<SupervisedJob> job = Get(name);
  return job != nullptr && job->IsNow(pid) ? job : nullptr;
}

void Supervisor::AddPoint(const std::string& name, pid_t pid, v1::RestartPoint point) {
  if (std::shared_ptr<SupervisedJob> job = FindRunning(name, pid)) job->AddPoint(std::move(point));
}

uint64_t Supervisor::TakeNumber(const std::string& name, pid_t pid,
                                std::map<std::string, std::string>* labels) {
  std::shared_ptr<SupervisedJob> job = FindRunning(name, pid);
  if (job == nullptr) return 0;
  uint64_t number;
  for (auto& [label, value] : job->LabelsOfNextImage(&number)) (*labels)[label] = value;
  return number;
}

void Supervisor::CheckpointAll(absl::Duration patience) {
  const auto jobs = Jobs();
  InParallel(jobs.size(), [&](size_t i) {
    if (jobs[i]->Ended()) return;
    if (absl::Status taken = jobs[i]->CheckpointNow(patience); !taken.ok())
      Log(LogLevel::kWarning,
          absl::StrCat("no last image of job '", jobs[i]->name(), "': ", taken.message()));
  });
}

void Supervisor::AwaitCopies(const Deadline& deadline, bool of_ended, const std::function<bool()>& given_up) {
  std::unique_ptr<CopyFollowers> copies;
  {
    absl::MutexLock lock(&mutex_);
    copies = std::move(copies_);
  }
  if (copies != nullptr) copies->AwaitCopies(deadline, of_ended, given_up);
}

void Supervisor::Leave() {
  std::thread watcher;
  std::unique_ptr<CopyFollowers> copies;  // ended without the lock
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    copies = std::move(copies_);
    watcher = std::move(watcher_);
  }
  garbage_.BeginStop();
  copies.reset();
  watcher_wakeup_.Notify();
  garbage_.Stop();
  if (watcher.joinable()) watcher.join();
  // Side by side: each may have to wait for the end of what it is at.
  const auto jobs = Jobs();
  InParallel(jobs.size(), [&](size_t i) { jobs[i]->Leave(); });
}

}  // namespace rekindle::daemon
