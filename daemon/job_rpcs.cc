// Jobs: started, listed, signalled.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "ckpt/held_job.h"
#include "daemon/job_launcher.h"
#include "daemon/process_info.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"

namespace rekindle::daemon {
namespace {

// Until the runtime hook holds one of the job's processes.
absl::Status WaitUntilHeld(const Call& call, const JobRecord& job, const JobEnd& end) {
  constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
  for (;;) {
    for (const pid_t pid : ProcessTree(job.pid)) {
      if (ckpt::IsHeld(pid)) return absl::OkStatus();
    }
    if (std::optional<ExitState> exit = end.WaitFor(kLookAgain)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job '", job.name, "' ended (", exit->ToString(),
                       ") before the hook held it: does it call ready()? Its "
                       "output is in ",
                       job.log));
    }
    if (call.cancelled && call.cancelled())
      return absl::CancelledError("the caller has gone; the job runs on");
  }
}

}  // namespace

absl::Status Run(Node& node, const Call& call, const v1::RunRequest& request,
                 const EventSink<v1::JobEvent>& send) {
  Stopwatch stopwatch;
  if (request.argv().empty()) {
    return absl::InvalidArgumentError("starting a job: no command was given: write it after '--'");
  }
  RK_RETURN_IF_ERROR(CheckAbsolute(request.working_directory(), "the working directory"));
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  JobRecord record;
  record.name = request.name();
  record.command = absl::StrJoin(request.argv(), " ");
  record.owner = call.caller.uid;
  if (!record.name.empty()) RK_RETURN_IF_ERROR(node.jobs().CheckNameIsFree(record.name));

  LaunchOptions launch;
  launch.argv.assign(request.argv().begin(), request.argv().end());
  launch.environment.assign(request.environment().begin(), request.environment().end());
  if (request.hold()) launch.environment.push_back("REKINDLE_HOLD=1");
  launch.working_directory = request.working_directory();
  launch.run_as = Node::UserOf(call.caller);
  if (request.log().empty()) {
    std::string name = record.name.empty() ? JobNameFromCommand(record.command) : record.name;
    RK_ASSIGN_OR_RETURN(JobLog log, MakeDefaultLog(node, call.caller, name));
    launch.log = std::move(log.path);
    launch.log_file = std::move(log.file);
  } else {
    RK_RETURN_IF_ERROR(CheckAbsolute(request.log(), "the log"));
    launch.log = request.log();
    RK_ASSIGN_OR_RETURN(launch.log_file, OpenFileAs(launch.run_as, launch.log,
                                                    O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, 0600));
  }
  record.log = launch.log;
  struct stat log_before;
  if (::fstat(launch.log_file.get(), &log_before) != 0) return ErrnoStatus(errno, record.log);

  RK_ASSIGN_OR_RETURN(restore::CgroupMembership cgroups, CgroupsForJob(call.caller, request.detach()));
  launch.groups = cgroups.processes();
  absl::StatusOr<pid_t> pid = LaunchJob(launch);
  if (!pid.ok()) {
    if (request.log().empty()) ::unlink(launch.log.c_str());
    return pid.status();
  }
  record.pid = *pid;
  record.started_unix_ns = UnixNanos();
  absl::StatusOr<RegisteredJob> job = RegisterJob(node, std::move(record), /*unique_name=*/false);
  if (!job.ok()) {
    ::kill(*pid, SIGKILL);
    while (::waitpid(*pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return job.status();
  }
  Log(LogLevel::kInfo, absl::StrCat("job '", job->record.name, "' started: PID ", *pid));

  v1::JobEvent event;
  v1::JobStarted* started = event.mutable_started();
  ToProto(job->record, started->mutable_job());
  started->set_log_offset(static_cast<uint64_t>(log_before.st_size));
  started->set_seconds(stopwatch.seconds());
  send(event);
  if (request.detach()) {
    return request.hold() ? WaitUntilHeld(call, job->record, *job->end) : absl::OkStatus();
  }
  return SendJobEnd(node, call, *job->end, send);
}

absl::Status SignalJob(Node& node, const Call& call, const v1::SignalJobRequest& request) {
  const pid_t pid = request.pid();
  if (request.signal() <= 0 || request.signal() >= NSIG) {
    return absl::InvalidArgumentError(absl::StrCat(request.signal(), " is no signal: use 1 to ", NSIG - 1));
  }
  // The descriptor is taken first: what is checked then is what gets the signal, whatever becomes of the
  // number.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  std::optional<JobRecord> job = node.jobs().FindRunning(pid);
  if (!pidfd.valid() || !job) {
    return absl::NotFoundError(
        absl::StrCat("sending a signal to process ", pid, ": it is no running job: see 'rekindle ps'"));
  }
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, job->owner, "signal", pid));
  // A group of which it is not the leader may hold strangers.
  const bool group = request.group() && ::getpgid(pid) == pid;
  if (group ? ::kill(-pid, request.signal()) != 0 : !SendSignal(pidfd.get(), request.signal())) {
    return ErrnoStatus(errno, absl::StrCat("sending signal ", request.signal(), " to job ", pid));
  }
  return absl::OkStatus();
}

absl::Status ListJobs(Node& node, const Call& call, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response) {
  RK_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, node.jobs().List());
  const bool admin = node.policy().IsAdmin(call.caller);
  for (const JobRecord& job : jobs) {
    if (!admin && job.owner != call.caller.uid) continue;
    if (!request.all() && !JobRegistry::Lives(job)) continue;
    ToProto(job, response->add_jobs());
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
