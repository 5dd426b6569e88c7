#include "daemon/rpc_support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pid_namespace.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "base/trace_rights.h"
#include "daemon/dependency_images.h"
#include "daemon/function_instances.h"
#include "daemon/process_info.h"
#include "daemon/supervised_job.h"
#include "daemon/supervisor.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {

absl::Status CheckLabelsOfCaller(const google::protobuf::Map<std::string, std::string>& labels) {
  for (const auto& [key, value] : labels) {
    if (key.empty() || absl::StrContains(key, '=')) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", key, "' can't be the key of a label: give one that is not empty and has no '='"));
    }
    for (const char* own : {"rekindle.group", "rekindle.supervised", "rekindle.job-",
                            v1::kConnectionLockLabel, v1::kOwnMountsLabel, v1::kCommandLabel}) {
      if (!absl::StartsWith(key, own)) continue;
      return absl::InvalidArgumentError(absl::StrCat("the label ", key,
                                                     " is what Rekindle itself says of an image: choose one "
                                                     "that does not begin with 'rekindle.'"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNoNameOfFunctions(absl::string_view reference) {
  for (const char* own : {kFunctionImages, kDependencyImages}) {
    if (!absl::StartsWith(reference, own)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("an image can't be called '", reference, "': names that begin with '", own,
                     "' are those of images that rekindled makes for functions; choose another one"));
  }
  return absl::OkStatus();
}

absl::Status CheckNoOriginLabel(const google::protobuf::Map<std::string, std::string>& labels) {
  if (!labels.contains(v1::kOriginLabel)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the label ", v1::kOriginLabel,
                   " is what copies of an image are known by, and only an import "
                   "sets it: choose another"));
}

absl::Status CheckMeansOurs(const Caller& caller, pid_t pid) {
  if (caller.kind != Caller::Kind::kLocal) return absl::OkStatus();
  constexpr absl::string_view kInstead =
      " (another PID namespace than rekindled's), where numbers mean other processes than to rekindled: name "
      "a job of 'rekindle ps' by its name, or ask from ";
  // The kernel has no number for one that ours does not hold.
  if (caller.pid <= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", pid, ": you are outside rekindled's container", kInstead, "inside that container"));
  }
  if (IsInOurPidNamespace(caller.pid).value_or(true)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", pid, ": you are in a container", kInstead, "outside the container"));
}

namespace {

// FailedPrecondition: a supervised job of this name has no process now, and gets one again.
absl::Status CheckIsNotBroughtBack(Node& node, const Caller& caller, const std::string& name) {
  const absl::StatusOr<std::shared_ptr<SupervisedJob>> job = node.supervisor().Find(name);
  if (!job.ok() || (*job)->Ended() || !node.policy().MayUse(caller, (*job)->owner())) return absl::OkStatus();
  const v1::Job now = (*job)->Describe();
  absl::string_view why = now.supervised().last_error();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", name, "' is being brought back",
                   now.image().empty() ? "" : absl::StrCat(" from ", now.image()), ": try again when it runs",
                   absl::ConsumePrefix(&why, kNotYet) ? absl::StrCat(" (it waits: ", why, ")") : ""));
}

}  // namespace

absl::StatusOr<JobRecord> FindTarget(Node& node, const Caller& caller, pid_t pid, const std::string& name,
                                     bool of_supervisor) {
  if (!name.empty()) {
    if (pid != 0)
      return absl::InvalidArgumentError("a job is named by its PID or by its name: give one of them");
    RK_ASSIGN_OR_RETURN(JobRecord job, node.jobs().FindByName(name));
    if (!JobRegistry::Lives(job)) {
      if (!of_supervisor) RK_RETURN_IF_ERROR(CheckIsNotBroughtBack(node, caller, job.name));
      const bool knows = job.exit && node.policy().MayUse(caller, job.owner);
      return absl::NotFoundError(absl::StrCat("job '", job.name, "' (PID ", job.pid, ") has ended",
                                              knows ? absl::StrCat(" (", job.exit->ToString(), ")") : "",
                                              ": 'rekindle ps' lists the jobs that run"));
    }
    return job;
  }
  if (pid <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", pid, "' is no PID: give a process's number"));
  }
  RK_RETURN_IF_ERROR(CheckMeansOurs(caller, pid));
  std::optional<JobRecord> job = node.jobs().FindRunning(pid);
  if (job) return *std::move(job);
  JobRecord process;
  process.pid = pid;
  RK_ASSIGN_OR_RETURN(ProcessInfo info, ReadProcessInfo(process.pid));
  process.owner = info.uid;
  return process;
}

std::optional<ExitState> RecordedExit(Node& node, const JobRecord& job) {
  constexpr int kLooks = 100;
  for (int look = 0; look < kLooks; ++look) {
    const absl::StatusOr<JobRecord> ended = node.jobs().FindByName(job.name);
    if (!ended.ok() || ended->pid != job.pid || ended->start_ticks != job.start_ticks) return std::nullopt;
    // Its end is recorded, also where nobody knows how it was.
    if (ended->exit || ended->exited_unix_ns != 0) return ended->exit;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return std::nullopt;
}

bool HasTakenName(const JobRecord& record, const v1::Job& ended) {
  return JobRegistry::Lives(record) ||
         (record.pid != ended.pid() && record.started_unix_ns > ended.started_unix_ns());
}

void SetIdentity(const Node& node, const JobRecord& record, v1::JobStarted* started) {
  struct stat pid_namespace;
  if (!node.options().daemon || ::stat("/proc/self/ns/pid", &pid_namespace) != 0) return;
  v1::ProcessIdentity* process = started->mutable_process();
  process->set_boot_id(record.boot_id);
  process->set_pid_namespace(pid_namespace.st_ino);
  process->set_start_ticks(record.start_ticks);
}

namespace {

// Which of several jobs have ended, in that order. Thread-safe.
class EndedJobs {
 public:
  void Add(size_t index) {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(index);
    added_.notify_one();
  }
  // Nothing when none has within `timeout`, of which nothing changes when the clock is set.
  std::optional<size_t> Next(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    added_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return !ended_.empty(); });
    if (ended_.empty()) return std::nullopt;
    const size_t index = ended_.front();
    ended_.pop_front();
    return index;
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<size_t> ended_;
};

}  // namespace

absl::Status SendJobEnds(const Node& node, const Call& call, absl::Span<const RegisteredJob> jobs,
                         const EventSink<v1::JobEvent>& send) {
  // It outlives this call where the client goes before the jobs do.
  auto ended = std::make_shared<EndedJobs>();
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].end->OnceSet([ended, i] { ended->Add(i); });
  // How soon it is seen that the client has gone; a job's end is seen at once.
  constexpr absl::Duration kLookForClient = absl::Milliseconds(200);
  for (size_t left = jobs.size(); left > 0;) {
    const std::optional<size_t> index = ended->Next(kLookForClient);
    if (!index) {
      if (node.stopping()) return absl::UnavailableError("rekindled ends; the job runs on");
      if (call.IsCancelled()) return absl::OkStatus();
      continue;
    }
    const RegisteredJob& job = jobs[*index];
    const ExitState exit = *job.end->WaitFor(absl::ZeroDuration());
    v1::JobEvent event;
    event.mutable_exited()->set_exit_code(exit.code);
    event.mutable_exited()->set_signal(exit.signal);
    event.mutable_exited()->set_pid(job.record.pid);
    event.mutable_exited()->set_instance(job.record.instance);
    send(event);
    --left;
  }
  return absl::OkStatus();
}

namespace {

// Keeps the record up to date.
std::function<void(const ExitState&)> AtEnd(Node& node, const JobRecord& record) {
  return [&node, record](const ExitState& exit) {
    absl::Status recorded = node.jobs().SetExit(record, exit);
    if (!recorded.ok()) Log(LogLevel::kWarning, recorded.message());
    Log(LogLevel::kInfo,
        absl::StrCat("job '", record.name, "' (PID ", record.pid, ") ended: ", exit.ToString()));
  };
}

// With a number behind it, it is a name still.
constexpr size_t kLongestStem = 56;

// A supervised job has its name also while it waits to be brought back.
void TakeNoSupervisedName(Node& node, JobRecord* record) {
  if (record->name.empty()) record->name = JobNameFromCommand(record->command);
  const std::string wanted = record->name.substr(0, kLongestStem);
  for (int number = 2; absl::IsAlreadyExists(node.supervisor().CheckNameIsFree(record->name)); ++number) {
    record->name = absl::StrCat(wanted, "-", number);
  }
}

}  // namespace

absl::StatusOr<NotedJob> NoteJob(Node& node, JobRecord record, bool unique_name) {
  if (unique_name || record.name.empty()) {
    TakeNoSupervisedName(node, &record);
    unique_name = true;
  }
  NotedJob noted;
  RK_ASSIGN_OR_RETURN(noted.record, node.jobs().Add(std::move(record), unique_name, &noted.before));
  return noted;
}

absl::StatusOr<RegisteredJob> FollowJob(Node& node, JobRecord noted) {
  RegisteredJob job;
  job.record = std::move(noted);
  RK_ASSIGN_OR_RETURN(job.end, node.reaper().Adopt(job.record.pid, AtEnd(node, job.record)));
  return job;
}

absl::StatusOr<RegisteredJob> RegisterJob(Node& node, JobRecord record, bool unique_name, UniqueFd ended,
                                          std::function<ExitState(int ended)> how) {
  RegisteredJob job;
  RK_ASSIGN_OR_RETURN(job.record, node.jobs().Add(std::move(record), unique_name));
  RK_ASSIGN_OR_RETURN(job.end,
                      node.reaper().Watch(std::move(ended), std::move(how), AtEnd(node, job.record)));
  return job;
}

NewLog::~NewLog() {
  if (!path_.empty() && FileSize(path_) == 0) ::unlink(path_.c_str());
}

namespace {

absl::Status NoLogFolder(const std::string& folder, const absl::Status& why) {
  const std::string message =
      absl::StrCat("logs of jobs go to ", folder, ", which can't be written to (", why.message(),
                   "): name this job's with --log FILE, or another folder with REKINDLE_LOG_DIR");
  // To be told from an image that is not there.
  return absl::IsNotFound(why) ? absl::FailedPreconditionError(message) : WithMessage(why, message);
}

}  // namespace

absl::StatusOr<JobLog> MakeDefaultLog(const Node& node, const Caller& caller, absl::string_view job_name) {
  const std::string& folder = node.options().log_directory;
  // Users reach their own logs in it by name; which others there are is not theirs to see.
  const absl::Status made = MakeDirectories(folder, 0711);
  if (!made.ok()) return NoLogFolder(folder, made);
  std::string stem = absl::StrCat(folder, "/", job_name, "-",
                                  absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()));
  JobLog log;
  for (int number = 1;; ++number) {
    log.path = absl::StrCat(stem, number == 1 ? "" : absl::StrCat("-", number), ".log");
    log.file.Reset(
        ::open(log.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (log.file.valid()) break;
    if (errno != EEXIST)
      return NoLogFolder(folder, ErrnoStatus(errno, absl::StrCat("making the job's log ", log.path)));
  }
  log.made = NewLog(log.path);
  if (std::optional<RunAs> user = Node::UserOf(caller);
      user && ::fchown(log.file.get(), user->uid, user->gid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("giving the job's log ", log.path, " to user ", user->uid));
  }
  return log;
}

namespace {

// The program that the calling process runs, if that is the caller's alone: a set-uid program that it may
// execute has files open that are not his. Root, who asks the kernel for descriptors here, would get them.
absl::StatusOr<std::string> ProgramOfCaller(const Caller& caller) {
  RK_RETURN_IF_ERROR(CheckMayTrace(caller.pid, {caller.uid, caller.gid, caller.groups}));
  RK_ASSIGN_OR_RETURN(std::string program, ProgramOf(caller.pid));
  // The number is its own as long as it is there.
  if (AwaitExit(caller.pidfd->get(), absl::ZeroDuration())) return absl::NotFoundError("has ended");
  return program;
}

absl::Status NotTaken(const Caller& caller, const absl::Status& why, absl::string_view cure) {
  return WithMessage(why, absl::StrCat("taking descriptors of the calling process ", caller.pid, ": it ",
                                       why.message(), "; ", cure));
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> TakeDescriptors(const Caller& caller, absl::Span<const int> numbers,
                                                      absl::string_view cure) {
  std::vector<UniqueFd> taken;
  for (const int fd : numbers) {
    if (fd < 0)
      return absl::InvalidArgumentError(absl::StrCat(fd, " is no descriptor of the calling process: ", cure));
  }
  if (caller.kind == Caller::Kind::kRemote || (caller.kind == Caller::Kind::kLocal && !caller.pidfd)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job can't have what a client on another machine has open: ", cure));
  }
  const bool looks = caller.kind == Caller::Kind::kLocal && caller.uid != 0;
  absl::StatusOr<std::string> before;
  if (looks) {
    before = ProgramOfCaller(caller);
    if (!before.ok()) return NotTaken(caller, before.status(), cure);
  }
  for (int fd : numbers) {
    taken.emplace_back(caller.kind == Caller::Kind::kSelf
                           ? ::fcntl(fd, F_DUPFD_CLOEXEC, 3)
                           : static_cast<int>(::syscall(SYS_pidfd_getfd, caller.pidfd->get(), fd, 0)));
    if (!taken.back().valid() && errno == EBADF) {
      return absl::InvalidArgumentError(absl::StrCat(
          "descriptor ", fd, " of the calling process is not open: give one that is, or ", cure));
    }
    if (!taken.back().valid())
      return ErrnoStatus(errno, absl::StrCat("taking descriptor ", fd, " of the calling process"));
  }
  if (looks) {
    const absl::StatusOr<std::string> after = ProgramOfCaller(caller);
    if (!after.ok()) return NotTaken(caller, after.status(), cure);
    if (*after != *before) {
      return NotTaken(caller, absl::PermissionDeniedError("has executed another program meanwhile"), cure);
    }
  }
  return taken;
}

absl::Status CheckStdio(const v1::RestoreRequest& request) {
  const auto& numbers = request.stdio_fds();
  const bool all = numbers.size() == 3 &&
                   std::all_of(numbers.begin(), numbers.end(), [](int number) { return number >= 0; });
  if (numbers.empty() || all) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "stdio_fds of the request: give three descriptors, for 0, 1 and 2, or none");
}

absl::StatusOr<std::vector<UniqueFd>> TakeStdio(const Caller& caller, const v1::RestoreRequest& request) {
  return TakeDescriptors(caller, request.stdio_fds(), "restore with --detach");
}

absl::StatusOr<std::vector<UniqueFd>> StdioOf(pid_t pid) {
  const std::string what = absl::StrCat("taking the output of process ", pid);
  const absl::StatusOr<UniqueFd> pidfd = OpenProcess(pid);
  RK_RETURN_IF_ERROR(Annotate(pidfd.status(), what));
  std::vector<UniqueFd> taken;
  for (int number = 0; number < 3; ++number) {
    // As it has it: opened once more, it could be more than that process may do with it.
    taken.emplace_back(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd->get(), number, 0)));
    if (!taken.back().valid()) return ErrnoStatus(errno, absl::StrCat(what, ", its descriptor ", number));
  }
  return taken;
}

absl::StatusOr<restore::CgroupMembership> CgroupsForJob(const Caller& caller, bool detached) {
  if (detached || caller.kind != Caller::Kind::kLocal || !caller.pidfd) return restore::CgroupMembership();
  RK_ASSIGN_OR_RETURN(restore::CgroupMembership membership, restore::CgroupMembership::Of(caller.pid));
  // Now it is certain that they were the caller's, and not those of who has its number by now.
  if (!SendSignal(caller.pidfd->get(), 0)) return absl::CancelledError("the caller has gone");
  return membership;
}

absl::Status CheckAbsolute(absl::string_view path, absl::string_view what) {
  if (absl::StartsWith(path, "/")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", path, "' is not an absolute path: the service has another working directory"));
}

}  // namespace rekindle::daemon
