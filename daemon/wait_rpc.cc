// Waiting for the ends of jobs, whoever started them.
#include <poll.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"

namespace rekindle::daemon {
namespace {

constexpr int kUnknownEnd = 255;
// How soon it is seen that the client has gone or that a job has ended which another process supervises, and,
// while other jobs are waited for as well, that a supervised one has.
constexpr int kLookForClientMs = 200, kLookForEventsMs = 50;

struct Awaited {
  std::string name;
  JobRecord record;                       // of one that is not supervised
  UniqueFd process;                       // of that, while it lives
  std::shared_ptr<SupervisedJob> job;     // else
  std::shared_ptr<JobEventQueue> events;  // of that
  bool elsewhere = false;                 // another process supervises it
  std::optional<v1::JobExit> exit;        // it has ended
};

v1::JobExit ExitOf(const std::string& name, pid_t pid, const std::optional<ExitState>& how) {
  v1::JobExit exit;
  exit.set_name(name);
  exit.set_pid(pid);
  exit.set_exit_code(how ? how->code : kUnknownEnd);
  exit.set_signal(how ? how->signal : 0);
  exit.set_unknown(!how);
  return exit;
}

// The newest that has, or had, this number.
absl::StatusOr<std::string> NameOf(Node& node, const Call& call, const std::string& digits) {
  int pid = 0;
  if (!absl::SimpleAtoi(digits, &pid)) return absl::InvalidArgumentError(absl::StrCat(digits, " is no PID"));
  RK_RETURN_IF_ERROR(CheckMeansOurs(call.caller, pid));
  RK_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs, node.jobs().List());
  const auto has_number = [&](const JobRecord& job) { return job.pid == pid; };
  const auto found = std::find_if(jobs.begin(), jobs.end(), has_number);
  if (found != jobs.end()) return found->name;
  return absl::NotFoundError(
      absl::StrCat("process ", pid, " is no job of Rekindle's: 'rekindle ps --all' lists those there are"));
}

// One that another process supervised, on this machine, as its record has it.
absl::StatusOr<std::optional<v1::JobExit>> EndedElsewhere(Node& node, const Call& call,
                                                          const std::string& name) {
  const absl::StatusOr<v1::SupervisedJobRecord> record =
      ReadSupervisedRecord(SupervisedDirectory(node.options().store), name);
  if (absl::IsNotFound(record.status()) || (record.ok() && !record->ended()))
    return std::optional<v1::JobExit>();
  RK_RETURN_IF_ERROR(record.status());
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, record->uid(), "wait for", record->pid()));
  v1::JobExit exit = ExitOf(name, record->pid(), ExitState{record->exit_code(), record->signal()});
  if (record->failed()) exit.set_report(record->report());
  return exit;
}

// For one that another process supervises, or is just starting: then it has no record yet.
absl::Status CheckMayWaitFor(Node& node, const Call& call, const std::string& name) {
  const absl::StatusOr<v1::SupervisedJobRecord> record =
      ReadSupervisedRecord(SupervisedDirectory(node.options().store), name);
  RK_RETURN_IF_ERROR(Annotate(record.status(), absl::StrCat("waiting for job '", name, "'")));
  return node.policy().MayUseJob(call.caller, record->uid(), "wait for", record->pid());
}

absl::StatusOr<Awaited> Find(Node& node, const Call& call, const std::string& word) {
  Awaited found;
  found.name = word;
  if (std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); })) {
    RK_ASSIGN_OR_RETURN(found.name, NameOf(node, call, word));
  }
  RK_RETURN_IF_ERROR(CheckJobName(found.name));
  absl::StatusOr<JobRecord> record = node.jobs().FindByName(found.name);
  absl::StatusOr<std::shared_ptr<SupervisedJob>> job = node.supervisor().Find(found.name);
  const bool ended = job.ok() && (*job)->Ended();
  if (job.ok() && (!ended || !record.ok() || !HasTakenName(*record, (*job)->Describe()))) {
    RK_RETURN_IF_ERROR(
        node.policy().MayUseJob(call.caller, (*job)->owner(), "wait for", (*job)->Describe().pid()));
    found.job = *std::move(job);
    found.events = found.job->events().Follow();
    return found;
  }
  if (!job.ok()) {
    if (!node.supervisor().CheckNameIsFree(found.name).ok()) {
      RK_RETURN_IF_ERROR(CheckMayWaitFor(node, call, found.name));
      found.elsewhere = true;
      return found;
    }
    absl::StatusOr<std::optional<v1::JobExit>> exit = EndedElsewhere(node, call, found.name);
    if (!exit.ok()) return Annotate(exit.status(), absl::StrCat("waiting for job '", found.name, "'"));
    if (*exit && (!record.ok() || !JobRegistry::Lives(*record))) {
      found.exit = *std::move(exit);
      return found;
    }
  }
  RK_RETURN_IF_ERROR(record.status());
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, record->owner, "wait for", record->pid));
  found.record = *std::move(record);
  absl::StatusOr<UniqueFd> process = OpenProcess(found.record.pid);
  if (!process.ok() && !absl::IsNotFound(process.status()))
    return Annotate(process.status(), absl::StrCat("waiting for job '", found.name, "'"));
  // Only now: what was opened is what has the number now. A zombie still tells how it ended.
  if (process.ok() && JobRegistry::IsThere(found.record)) found.process = *std::move(process);
  return found;
}

std::optional<ExitState> HowItEnded(Node& node, const Awaited& job) {
  // Of one that nobody else watches the kernel may tell us. Of a copy its sandbox knows more.
  if (job.process.valid() && job.record.instance.empty()) {
    if (const std::optional<ExitState> exit = ExitOfEnded(job.process.get())) {
      const absl::Status recorded = node.jobs().SetExit(job.record, exit);
      if (!recorded.ok()) Log(LogLevel::kWarning, recorded.message());
      return exit;
    }
  }
  return RecordedExit(node, job.record);
}

// Of one that another process supervises: its record says how it ended. An error: nobody does any more who
// could record that.
absl::Status LookElsewhere(Node& node, const Call& call, Awaited& job) {
  // A daemon takes it over when that process is killed.
  if (absl::StatusOr<std::shared_ptr<SupervisedJob>> taken = node.supervisor().Find(job.name); taken.ok()) {
    job.elsewhere = false;
    job.job = *std::move(taken);
    job.events = job.job->events().Follow();
    return absl::OkStatus();
  }
  // In this order: whoever supervises it records its end, then lets go of it.
  if (!node.supervisor().CheckNameIsFree(job.name).ok()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(job.exit, EndedElsewhere(node, call, job.name));
  if (job.exit) return absl::OkStatus();
  const std::string records = SupervisedDirectory(node.options().store);
  RK_ASSIGN_OR_RETURN(const v1::SupervisedJobRecord record, ReadSupervisedRecord(records, job.name));
  RK_RETURN_IF_ERROR(CheckIsOfThisMachine(records, record));
  if (node.options().daemon) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", job.name,
                   "' has not ended, and whoever supervised it has: rekindled takes it over when it is "
                   "started, 'rekindle stop ",
                   job.name, "' ends it"));
}

// Looks whether it has ended.
void LookAt(Node& node, Awaited& job) {
  if (job.events != nullptr) {
    while (std::optional<v1::JobEvent> event = job.events->Next(absl::ZeroDuration())) {
      if (event->has_exited()) job.exit = event->exited();
    }
    if (job.exit) job.exit->set_name(job.name);
  } else if (!job.exit && (!job.process.valid() || AwaitExit(job.process.get(), absl::ZeroDuration()))) {
    job.exit = ExitOf(job.name, job.record.pid, HowItEnded(node, job));
    job.exit->set_instance(job.record.instance);
  }
}

// Until one of them may have ended, and no longer than until it is time to look for the client.
void Pause(const std::vector<Awaited>& jobs, const Deadline& deadline) {
  std::vector<pollfd> processes;
  int limit = kLookForClientMs;
  for (const Awaited& job : jobs) {
    if (job.events != nullptr) limit = kLookForEventsMs;
    if (job.process.valid()) processes.push_back({job.process.get(), POLLIN, 0});
  }
  const int left = deadline.left_ms();
  ::poll(processes.data(), processes.size(), left < 0 ? limit : std::min(limit, left));
}

absl::Status NotEnded(const std::vector<Awaited>& jobs, double seconds) {
  const std::string names = absl::StrJoin(
      jobs, ", ", [](std::string* out, const Awaited& job) { absl::StrAppend(out, "'", job.name, "'"); });
  return absl::DeadlineExceededError(absl::StrCat(jobs.size() == 1 ? "job " : "jobs ", names,
                                                  jobs.size() == 1 ? " has" : " have", " not ended within ",
                                                  absl::FormatDuration(absl::Seconds(seconds))));
}

}  // namespace

absl::Status WaitForJobs(Node& node, const Call& call, const v1::WaitForJobsRequest& request,
                         const EventSink<v1::JobExit>& send) {
  const double seconds = request.timeout_seconds();
  if (!(seconds >= 0)) return absl::InvalidArgumentError("the time to wait must be 0 or more seconds");
  const Deadline deadline(request.has_timeout_seconds() ? absl::Seconds(seconds) : absl::InfiniteDuration());
  if (request.jobs().empty()) return absl::InvalidArgumentError("waiting for jobs: none was named");
  std::vector<Awaited> jobs;
  // Each holds a descriptor: a job that is named a million times has one.
  std::set<std::string> words, names;
  for (const std::string& word : request.jobs()) {
    if (!words.insert(word).second) continue;
    RK_ASSIGN_OR_RETURN(Awaited job, Find(node, call, word));
    if (names.insert(job.name).second) jobs.push_back(std::move(job));
  }
  for (;;) {
    for (auto job = jobs.begin(); job != jobs.end();) {
      if (job->elsewhere) RK_RETURN_IF_ERROR(LookElsewhere(node, call, *job));
      if (!job->elsewhere) LookAt(node, *job);
      if (!job->exit) {
        ++job;
        continue;
      }
      if (!send(*job->exit)) return absl::OkStatus();
      job = jobs.erase(job);
    }
    if (jobs.empty()) return absl::OkStatus();
    if (deadline.passed()) return NotEnded(jobs, seconds);
    if (node.stopping()) {
      return absl::UnavailableError(
          absl::StrCat("rekindled ends; ", jobs.size() == 1 ? "the job runs" : "the jobs run", " on"));
    }
    if (call.IsCancelled()) return absl::OkStatus();
    Pause(jobs, deadline);
  }
}

}  // namespace rekindle::daemon
