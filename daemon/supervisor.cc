#include "daemon/supervisor.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timeline.h"
#include "daemon/copy_notes.h"
#include "daemon/hindrance.h"
#include "daemon/image_lookup.h"
#include "daemon/job_log.h"
#include "daemon/job_mark.h"
#include "daemon/job_start.h"
#include "daemon/node.h"
#include "daemon/old_logs.h"
#include "daemon/process_settings.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_record.h"
#include "rekindle/v1/image_layout.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

constexpr int64_t kLeastBetweenCollectionsNanos = 20'000'000'000;
// How soon a job is taken over whose supervisor has died.
constexpr absl::Duration kLookAtOthers = absl::Seconds(1);
// A child that a daemon which was killed had just forked has what that had open, until it becomes its
// program.
constexpr absl::Duration kForkMayTake = absl::Milliseconds(500), kLookAgain = absl::Milliseconds(5);
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
    {
      absl::MutexLock lock(&mutex_);
      auto it = jobs_.find(name);
      if (starting_.count(name) != 0 || (it != jobs_.end() && !it->second->Ended())) continue;
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

namespace {

// Its job may live: the record is all that is known of it, and not to be overwritten.
absl::Status NameOfUnreadable(const std::string& name, const absl::Status& why) {
  const std::string text = absl::StrCat(
      "the name '", name, "' is that of a supervised job whose record can't be used: ", why.message(),
      "; choose another --name");
  if (absl::IsDataLoss(why))
    return absl::AlreadyExistsError(absl::StrCat(text, ", or, once its job has ended, remove that file"));
  if (absl::IsFailedPrecondition(why)) return absl::AlreadyExistsError(text);
  // Another name would meet the same.
  return Annotate(why, absl::StrCat("reading whether a supervised job has the name '", name, "'"));
}

}  // namespace

absl::StatusOr<SupervisedHold> Supervisor::Claim(const std::string& name) {
  const std::shared_ptr<SupervisedJob> before = Get(name);
  if (before != nullptr) before->ForgetEnded();
  RK_ASSIGN_OR_RETURN(SupervisedHold hold, SupervisedHold::Take(directory(), name));
  absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
  if (absl::IsNotFound(record.status())) return hold;
  if (!record.ok()) return NameOfUnreadable(name, record.status());
  if (record->ended()) return hold;
  if (before != nullptr && before->submitted_unix_ns() == record->submitted_unix_ns()) return hold;
  if (absl::Status foreign = CheckIsOfThisMachine(directory(), *record); !foreign.ok())
    return absl::AlreadyExistsError(absl::StrCat(foreign.message(), "; or choose another --name"));
  return absl::AlreadyExistsError(absl::StrCat("a supervised job named '", name,
                                               "' has not ended, and whoever supervised it has: "
                                               "rekindled takes it over when it is started, 'rekindle stop ",
                                               name, "' ends it; or choose another --name"));
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

absl::StatusOr<SupervisedHold> Supervisor::TakeName(const Caller& caller, const std::string& name,
                                                    std::unique_ptr<Reservation>* reservation) {
  reservation->reset();
  RK_RETURN_IF_ERROR(CheckNameIsFreeFor(caller, name));
  RK_RETURN_IF_ERROR(node_.jobs().CheckNameIsFree(name));
  {
    absl::MutexLock lock(&mutex_);
    if (!starting_.insert(name).second)
      return absl::AlreadyExistsError(
          absl::StrCat("a job named '", name, "' is just being started: choose another --name"));
  }
  *reservation = std::make_unique<Reservation>(*this, name);
  return Claim(name);
}

namespace {

// The file, whatever leads to it.
std::string LogKey(const std::string& log) {
  struct stat info;
  return ::stat(log.c_str(), &info) == 0 ? absl::StrCat(info.st_dev, ":", info.st_ino) : log;
}

}  // namespace

absl::StatusOr<std::shared_ptr<void>> Supervisor::ReserveLog(const std::string& log, bool supervised) {
  struct stat info;
  // What is no file, as /dev/null, is not cut back.
  if (log.empty() || (::stat(log.c_str(), &info) == 0 && !S_ISREG(info.st_mode))) return nullptr;
  const std::string key = LogKey(log);
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = starting_logs_.equal_range(key);
  if (std::any_of(begin, end, [&](const auto& other) { return supervised || other.second; })) {
    return absl::FailedPreconditionError(
        absl::StrCat("another job is just being started with the log ", log,
                     ", and one that is brought back has its log cut: give each another --log"));
  }
  const auto reserved = starting_logs_.emplace(key, supervised);
  return std::shared_ptr<void>(nullptr, [this, reserved](void*) {
    absl::MutexLock dropped(&mutex_);
    starting_logs_.erase(reserved);
  });
}

namespace {

// Of the job that this image was taken of; 0: it was not supervised, or its first submission is not known.
int64_t FirstSubmissionOf(const store::ImageInfo& image) {
  for (const char* label : {v1::kSupervisedFirstLabel, v1::kSupervisedLabel}) {
    const auto said = image.labels.find(label);
    int64_t submitted = 0;
    if (said != image.labels.end() && absl::SimpleAtoi(said->second, &submitted)) return submitted;
  }
  return 0;
}

// What there is to know of a job that goes on from an image, which becomes what it can go on from.
absl::StatusOr<JobStart> PlanFromImage(Node& node, const Call& call, const v1::RunRequest& request,
                                       v1::SupervisedJobRecord* record) {
  if (request.argv_size() != 0) {
    return absl::InvalidArgumentError(
        "a job that goes on from an image has its command: give one of the two");
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(const store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.from_image(), "restore"));
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<store::ImageReader> image, store->OpenImage(info.digest));
  RK_ASSIGN_OR_RETURN(const v1::JobManifest manifest, restore::ReadJobManifest(*image));
  JobStart start;
  if (std::string newer = WarningOfNewer(node, *store, call.caller, request.from_image(), info);
      !newer.empty())
    start.warnings.push_back(std::move(newer));
  start.record.command = manifest.command();
  start.launch.argv = {manifest.command()};
  start.launch.working_directory = manifest.working_directory();
  start.launch.log = request.log().empty() ? manifest.log() : request.log();
  start.log_offset = FileSize(start.launch.log);
  v1::RestartPoint* point = record->add_points();
  point->set_image(info.reference);
  point->set_digest(info.digest);
  point->set_taken_unix_ns(manifest.captured_unix_ns() != 0 ? manifest.captured_unix_ns()
                                                            : info.created_unix_ns);
  point->set_number(1);
  record->set_last_number(1);
  record->set_had_points(true);
  if (record->name().empty()) record->set_name(manifest.job_name());
  record->set_mark(MarkOfImage(info.labels));
  record->set_first_submitted_unix_ns(FirstSubmissionOf(info));
  return start;
}

// Another image may do. Where it is the machine that another one may fit, nobody knows how far back that is,
// and the image is not lost: it is for who starts the job to choose.
bool LiesInImage(const absl::Status& status) {
  return !status.ok() && HindranceOf(status) == Hindrance::kImage;
}

void WarnOfFiles(const v1::JobRestarted& restarted, v1::JobStarted* started) {
  int changed = 0;
  for (const v1::FileRollback& file : restarted.files()) {
    if (file.action() == v1::FileRollback::LEFT) {
      started->add_warnings(absl::StrCat(file.path(), " could not be put back: ", file.why()));
    } else if (file.action() != v1::FileRollback::UNCHANGED && file.action() != v1::FileRollback::IGNORED) {
      ++changed;
    }
  }
  if (changed == 0) return;
  started->add_warnings(
      absl::StrCat(changed, changed == 1 ? " file is" : " files are", " again as when the image was taken"));
}

// What whoever has a job begin with its command should know: most who do that once more want it to go on.
void WarnOfBeginning(Node& node, const Call& call, const v1::RunRequest& request,
                     const v1::SupervisedJobRecord& record, std::vector<std::string>* warnings) {
  const v1::Supervision& policy = record.policy();
  if (policy.hang_seconds() > 0 && policy.restarts() > 0 && !policy.every_auto() &&
      policy.every_seconds() == 0) {
    warnings->push_back(
        "no images of it are taken by interval: when it hangs or dies it begins anew, over what it has "
        "written, unless somebody has taken one. With --every it goes on from the last");
  }
  const std::string images = policy.image_name().empty() ? ImageNameOf(record.name()) : policy.image_name();
  const auto store = node.OpenStore(Node::Access::kRead);
  if (!store.ok()) return;
  const absl::StatusOr<store::ImageInfo> newest = FindImageFor(node, **store, call.caller, images, "restore");
  if (!newest.ok() || newest->owner != call.caller.uid) return;
  // A name that was made of the command is that of many.
  const auto command = newest->labels.find(v1::kCommandLabel);
  if (request.name().empty() &&
      (command == newest->labels.end() || command->second != absl::StrJoin(record.argv(), " ")))
    return;
  warnings->push_back(absl::StrCat("there are images of an earlier job of this name, the newest ",
                                   newest->reference, ", and this one begins anew. `rekindle run --from ",
                                   newest->reference,
                                   " …` goes on from it, and with --resume a job does so "
                                   "wherever there is one"));
}

// When the first image is taken it would be too late: the job would run without any.
absl::Status CheckNameOfImages(const v1::RunRequest& request) {
  const std::string& given = request.supervision().image_name();
  const std::string& name = given.empty() ? request.name() : given;
  if (name.empty()) return absl::OkStatus();
  if (const absl::StatusOr<std::string> reference = store::NormalizeReference(absl::StrCat(name, ":x"));
      reference.ok()) {
    return CheckNoNameOfFunctions(*reference);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "images can't be called '", name,
      "': their names are small letters and digits, joined by single '.', '_', '-' or '/'. Add --image-name ",
      ImageNameOf(name), given.empty() ? ", or give another --name" : ""));
}

}  // namespace

absl::Status Supervisor::TryCopyTo(const Call& call, const v1::RunRequest& request) const {
  if (!request.supervision().has_copy_to()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Annotate(CheckCopyTo(request.supervision().copy_to()), "--copy-to"));
  v1::SupervisedJobRecord job;
  *job.mutable_policy() = request.supervision();
  job.set_uid(call.caller.uid);
  job.set_gid(call.caller.gid);
  job.mutable_groups()->Assign(call.caller.groups.begin(), call.caller.groups.end());
  *job.mutable_environment() = request.environment();
  std::string unknown;  // the job's start tells
  RK_ASSIGN_OR_RETURN(const std::optional<ProcessSettings> settings, SettingsOfCaller(call.caller, &unknown));
  if (settings) *job.mutable_settings() = ToProto(*settings);
  // What it will be called, as far as that is known: at most places one is as good as another.
  std::string images = request.supervision().image_name();
  if (images.empty() && !request.from_image().empty())
    images = request.from_image().substr(0, request.from_image().find_first_of(":@"));
  if (images.empty()) {
    images = ImageNameOf(request.name().empty() ? JobNameFromCommand(absl::StrJoin(request.argv(), " "))
                                                : request.name());
  }
  return TryCopyPlace(node_.options(), CopyPlanOf(job, images), call.cancelled);
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

absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervisor::Run(const Call& call,
                                                               const v1::RunRequest& request,
                                                               v1::JobStarted* started) {
  bool of_image = false;
  absl::StatusOr<std::shared_ptr<SupervisedJob>> job = RunFrom(call, request, started, &of_image);
  std::string image = request.from_image(), passed_over;
  std::vector<std::string> warnings;
  for (const std::string& older : request.older_images()) {
    if (job.ok() || !of_image || call.IsCancelled()) break;
    const std::string why = absl::StrCat(image, ": ", job.status().message());
    Log(LogLevel::kWarning, absl::StrCat("job '", request.name(), "' can't go on from ", why));
    warnings.push_back(absl::StrCat("the job could not be brought back from ", why));
    absl::StrAppend(&passed_over, passed_over.empty() ? "" : "; ", why);
    v1::RunRequest next = request;
    next.set_from_image(image = older);
    started->Clear();
    job = RunFrom(call, next, started, &of_image);
  }
  if (passed_over.empty()) return job;
  if (!job.ok()) {
    return WithMessage(job.status(),
                       absl::StrCat("it can't be brought back from any of its images that were tried: ",
                                    passed_over, "; ", image, ": ", job.status().message()));
  }
  warnings.back() += absl::StrCat("; it goes on from ", image);
  started->mutable_warnings()->Add(warnings.begin(), warnings.end());
  return job;
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervisor::RunFrom(const Call& call,
                                                                   const v1::RunRequest& request,
                                                                   v1::JobStarted* started, bool* of_image) {
  Stopwatch stopwatch;
  *of_image = false;
  // The store has to be there before something is put into its folder.
  RK_RETURN_IF_ERROR(node_.OpenStore(Node::Access::kCreate).status());
  if (node_.options().daemon) {
    RK_RETURN_IF_ERROR(LockJobs());
  } else {
    RK_RETURN_IF_ERROR(MakeSupervisedDirectory(directory()));
  }
  v1::SupervisedJobRecord record;
  *record.mutable_policy() = request.supervision();
  RK_RETURN_IF_ERROR(CompletePolicy(record.mutable_policy()));
  if (request.hold()) {
    return absl::InvalidArgumentError(
        "a job that the hook holds makes no progress to supervise: leave --hold out");
  }
  RK_RETURN_IF_ERROR(CheckNameOfImages(request));
  RK_RETURN_IF_ERROR(TryCopyTo(call, request));
  if (record.policy().has_copy_to() && !request.from_image().empty())
    *record.mutable_copy_environment() = request.environment();
  record.set_name(request.name());
  absl::StatusOr<JobStart> plan = request.from_image().empty() ? PlanJobStart(node_, call, request)
                                                               : PlanFromImage(node_, call, request, &record);
  *of_image = LiesInImage(plan.status());
  RK_ASSIGN_OR_RETURN(JobStart start, std::move(plan));
  const std::string stem = record.name().empty() ? JobNameFromCommand(start.record.command) : record.name();
  record.set_name(stem);
  std::unique_ptr<Reservation> reservation;
  absl::StatusOr<SupervisedHold> hold = TakeName(call.caller, stem, &reservation);
  for (int number = 2; absl::IsAlreadyExists(hold.status()) && request.name().empty(); ++number) {
    record.set_name(absl::StrCat(stem, "-", number));
    hold = TakeName(call.caller, record.name(), &reservation);
  }
  RK_RETURN_IF_ERROR(hold.status());
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<void> log_reservation,
                      ReserveLog(request.from_image().empty() ? request.log() : start.launch.log,
                                 /*supervised=*/true));
  RK_RETURN_IF_ERROR(CheckLogIsOwn(node_, call.caller,
                                   request.from_image().empty() ? request.log() : start.launch.log,
                                   /*supervised=*/true, record.name(), &start.warnings));
  record.set_uid(call.caller.uid);
  record.set_gid(call.caller.gid);
  record.mutable_groups()->Assign(call.caller.groups.begin(), call.caller.groups.end());
  for (const std::string& word : start.launch.argv) record.add_argv(word);
  for (const std::string& variable : start.launch.environment) record.add_environment(variable);
  record.set_working_directory(start.launch.working_directory);
  record.set_log(start.launch.log);
  record.set_log_offset(start.log_offset);
  record.set_standard_input(start.launch.standard_input);
  if (start.launch.settings) *record.mutable_settings() = ToProto(*start.launch.settings);
  record.set_submitted_unix_ns(UnixNanos());
  if (record.mark().empty()) record.set_mark(NewJobMark(record.name()));
  const std::string name = record.name();
  v1::JobRestarted restarted;
  std::vector<std::string> warnings = std::move(start.warnings);
  if (request.from_image().empty()) WarnOfBeginning(node_, call, request, record, &warnings);
  absl::StatusOr<std::shared_ptr<SupervisedJob>> launched =
      request.from_image().empty()
          ? SupervisedJob::Launch(node_, std::move(record), *std::move(hold),
                                  std::move(start.launch.log_file), &warnings)
          : SupervisedJob::LaunchFromImage(node_, std::move(record), *std::move(hold), request.log(),
                                           &restarted);
  *of_image = LiesInImage(launched.status());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<SupervisedJob> job, std::move(launched));
  start.new_log.Keep();
  ToProto(warnings, started->mutable_warnings());
  WarnOfFiles(restarted, started);
  *started->mutable_job() = job->Describe();
  started->set_log_offset(start.log_offset);
  started->set_seconds(stopwatch.seconds());
  std::shared_ptr<SupervisedJob> before;  // ended without the lock
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(jobs_[name], job);
  }
  if (request.supervision().has_copy_to()) BeginCopying();
  return job;
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

void Supervisor::CollectGarbageSoon(double seconds) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  const int64_t wanted = MonotonicNanos() + static_cast<int64_t>(seconds * 1e9);
  const int64_t not_before = collected_at_ns_ + (seconds > 0 ? kLeastBetweenCollectionsNanos : 0);
  collect_at_ns_ = std::min(collect_at_ns_, std::max(wanted, not_before));
  if (!collector_.joinable()) {
    try {
      collector_ = std::thread(&Supervisor::CollectGarbageLoop, this);
    } catch (const std::system_error& error) {  // the next call tries again
      Log(LogLevel::kWarning, absl::StrCat("garbage is not collected now: ", NoMoreThreads(error).message()));
      return;
    }
  }
  collector_wakeup_.Notify();
}

void Supervisor::CollectGarbageLoop() {
  for (;;) {
    int64_t wait = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      wait = collect_at_ns_ - MonotonicNanos();
      if (wait <= 0) collect_at_ns_ = INT64_MAX;
    }
    if (wait > 0) {
      constexpr int64_t kLongestNanos = 3600'000'000'000;
      collector_wakeup_.WaitFor(absl::Nanoseconds(std::min(wait, kLongestNanos)));
      continue;
    }
    Call call;  // our own
    v1::CollectGarbageResponse response;
    absl::Status collected = CollectGarbage(node_, call, v1::CollectGarbageRequest(), &response);
    if (!collected.ok())
      Log(LogLevel::kWarning, absl::StrCat("garbage was not collected: ", collected.message()));
    absl::MutexLock lock(&mutex_);
    collected_at_ns_ = MonotonicNanos();
  }
}

void Supervisor::Leave() {
  std::thread collector, watcher;
  std::unique_ptr<CopyFollowers> copies;  // ended without the lock
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    copies = std::move(copies_);
    collector = std::move(collector_);
    watcher = std::move(watcher_);
  }
  copies.reset();
  collector_wakeup_.Notify();
  watcher_wakeup_.Notify();
  if (collector.joinable()) collector.join();
  if (watcher.joinable()) watcher.join();
  // Side by side: each may have to wait for the end of what it is at.
  const auto jobs = Jobs();
  InParallel(jobs.size(), [&](size_t i) { jobs[i]->Leave(); });
}

}  // namespace rekindle::daemon
