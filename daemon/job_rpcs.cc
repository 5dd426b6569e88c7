// Jobs: started, listed, signalled.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
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
#include "daemon/copy_notes.h"
#include "daemon/job_file.h"
#include "daemon/job_log.h"
#include "daemon/job_room.h"
#include "daemon/job_start.h"
#include "daemon/process_info.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervisor.h"

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
    if (call.IsCancelled()) return absl::CancelledError("the caller has gone; the job runs on");
  }
}

// What the job says of itself. Of an earlier job with its name, where it is not supervised, nothing.
void AddProgress(const Node& node, const JobRecord& job, v1::Job* out) {
  // A copy's file is the one of the job that its image was taken of.
  if (!job.instance.empty()) return;
  absl::StatusOr<rekindle_job_file> file = JobFile::ReadAt(
      JobFile::PathOf(node.options().runtime_directory, job.mark.empty() ? out->name() : job.mark));
  if (!file.ok() || file->job.unix_ns == 0) return;
  if (!out->has_supervised() && file->job.unix_ns < out->started_unix_ns()) return;
  ToProto(file->job, UnixNanos(), out->mutable_progress());
}

// Else the job would begin anew, over what it has written.
absl::Status CheckGoesOnSupervised(const v1::RunRequest& request) {
  if (request.from_image().empty() && request.older_images_size() > 0) {
    return absl::InvalidArgumentError(
        "older_images of the request are for a job that goes on from from_image, which is missing: name the "
        "image that is to be tried first in it");
  }
  if (request.from_image().empty() || request.has_supervision()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "from_image of the request, ", request.from_image(),
      ", is for a supervised job, and supervision is missing: add it (an empty one takes no images "
      "and never restarts), or bring the image back with Restore"));
}

}  // namespace

absl::Status Run(Node& node, const Call& call, const v1::RunRequest& request,
                 const EventSink<v1::JobEvent>& send) {
  RK_RETURN_IF_ERROR(CheckGoesOnSupervised(request));
  if (request.has_supervision()) return RunSupervised(node, call, request, send);
  Stopwatch stopwatch;
  RK_ASSIGN_OR_RETURN(std::shared_ptr<void> room, TakeRoomForJob(node, call.caller));
  if (!request.name().empty())
    RK_RETURN_IF_ERROR(node.supervisor().CheckNameIsFreeFor(call.caller, request.name()));
  RK_ASSIGN_OR_RETURN(JobStart start, PlanJobStart(node, call, request));
  RK_ASSIGN_OR_RETURN(const restore::CgroupMembership cgroups, CgroupsForJob(call.caller, request.detach()));
  start.launch.groups = cgroups.processes();
  std::vector<std::string> warnings;
  RK_ASSIGN_OR_RETURN(std::shared_ptr<void> log_reservation,
                      node.supervisor().ReserveLog(request.log(), /*supervised=*/false));
  RK_RETURN_IF_ERROR(CheckLogIsOwn(node, call.caller, request.log(), /*supervised=*/false, "", &warnings));
  RK_ASSIGN_OR_RETURN(RegisteredJob job, StartJob(node, start, &warnings));
  log_reservation.reset();
  start.launch.log_file.Reset();  // to others we would write to it
  room.reset();
  v1::JobEvent event;
  v1::JobStarted* started = event.mutable_started();
  ToProto(job.record, started->mutable_job());
  SetIdentity(node, job.record, started);
  started->set_log_offset(start.log_offset);
  started->set_seconds(stopwatch.seconds());
  ToProto(warnings, started->mutable_warnings());
  // Whoever gave it up would not know that it runs.
  if (call.IsCancelled() || !send(event)) {
    if (JobRegistry::Lives(job.record)) ::kill(-job.record.pid, SIGKILL);
    return absl::CancelledError("interrupted; the job that was just started was ended again");
  }
  start.new_log.Keep();
  if (request.detach()) {
    return request.hold() ? WaitUntilHeld(call, job.record, *job.end) : absl::OkStatus();
  }
  return SendJobEnds(node, call, {&job, 1}, send);
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
  constexpr int kEnding[] = {SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM};
  if (std::find(std::begin(kEnding), std::end(kEnding), request.signal()) != std::end(kEnding))
    node.supervisor().WillEnd(job->name, request.signal());
  // A group of which it is not the leader may hold strangers.
  const bool group = request.group() && ::getpgid(pid) == pid;
  if (group ? ::kill(-pid, request.signal()) != 0 : !SendSignal(pidfd.get(), request.signal())) {
    return ErrnoStatus(errno, absl::StrCat("sending signal ", request.signal(), " to job ", pid));
  }
  return absl::OkStatus();
}

absl::Status ListJobsAlone(Node& node, const Call& call, const v1::ListJobsRequest& request,
                           v1::ListJobsResponse* response) {
  RK_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, node.jobs().List());
  const ProcessChildren all;
  std::map<std::string, const JobRecord*> known;
  for (const JobRecord& job : jobs) known[job.name] = &job;
  std::set<std::string> shown;
  for (const v1::Job& job : node.supervisor().List(all)) {
    if (!node.policy().MayUse(call.caller, job.owner_uid())) continue;
    const bool ended = job.supervised().phase() == "done" || job.supervised().phase() == "failed";
    auto record = known.find(job.name());
    if (!ended || record == known.end() || !HasTakenName(*record->second, job)) shown.insert(job.name());
    if (ended && !request.all()) continue;
    v1::Job* out = response->add_jobs();
    *out = job;
    if (!ended) AddProgress(node, record == known.end() ? JobRecord() : *record->second, out);
  }
  for (const JobRecord& job : jobs) {
    if (!node.policy().MayUse(call.caller, job.owner)) continue;
    if (shown.count(job.name) != 0 || (!request.all() && !JobRegistry::Lives(job))) continue;
    v1::Job* out = response->add_jobs();
    ToProto(job, out, &all);
    // One that has ended may have left its file to another.
    if (job.mark.empty() || JobRegistry::Lives(job)) AddProgress(node, job, out);
  }
  return absl::OkStatus();
}

absl::Status ListJobs(Node& node, const Call& call, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response) {
  RK_RETURN_IF_ERROR(ListJobsAlone(node, call, request, response));
  const std::vector<v1::CopyState> copies = CopyStatesFor(node, call);
  for (v1::Job& job : *response->mutable_jobs()) AddCopies(node, copies, &job);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
