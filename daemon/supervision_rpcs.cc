// Supervised jobs: started, followed, ended.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "daemon/job_members.h"
#include "daemon/job_room.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"

namespace rekindle::daemon {
namespace {

constexpr double kDefaultGraceSeconds = 10;
constexpr absl::Duration kLastCopyMayTake = absl::Hours(1);

// Until it has ended for good, the client has gone, or the daemon is about to.
absl::Status SendEvents(const Node& node, const Call& call, JobEventQueue& queue,
                        const EventSink<v1::JobEvent>& send) {
  constexpr absl::Duration kLookForClient = absl::Milliseconds(200);
  for (;;) {
    if (std::optional<v1::JobEvent> event = queue.Next(kLookForClient)) {
      send(*event);
      if (event->has_exited()) return absl::OkStatus();
    }
    if (node.stopping()) return absl::UnavailableError("rekindled ends; the job runs on");
    if (call.IsCancelled()) return absl::OkStatus();
  }
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> FindFor(Node& node, const Call& call, const std::string& name,
                                                       absl::string_view verb) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<SupervisedJob> job, node.supervisor().Find(name));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, job->owner(), verb, job->Describe().pid()));
  return job;
}

// Of one that is not supervised here, as its record has it: who supervises it is told to those alone who may
// use it. Nothing where there is no record, or where it can't be read.
absl::StatusOr<bool> MayUseRecorded(Node& node, const Call& call, const std::string& name,
                                    absl::string_view verb) {
  if (!CheckJobName(name).ok()) return true;
  const absl::StatusOr<v1::SupervisedJobRecord> record =
      ReadSupervisedRecord(SupervisedDirectory(node.options().store), name);
  if (!record.ok()) return node.policy().IsAdmin(call.caller);
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, record->uid(), verb, record->pid()));
  return true;
}

// What there is of a session beside its leader, and what descends from it.
std::map<pid_t, UniqueFd> OthersOf(pid_t session) {
  JobTraits traits;
  traits.session = session;
  std::map<pid_t, UniqueFd> others = OpenJobMembers(traits);
  others.erase(session);
  return others;
}

// Waits for a process's end until `deadline`. An error: nobody waits for that any more.
absl::Status AwaitExitOf(int pidfd, const Deadline& deadline, const Node& node, const Call& call) {
  constexpr absl::Duration kLookForClient = absl::Milliseconds(200);
  while (!AwaitExit(pidfd, std::min(deadline.left(), kLookForClient)) && !deadline.passed()) {
    constexpr absl::string_view kGoesOn =
        "; the job was told to end, and what is left of it after that is left alone";
    if (call.IsCancelled()) return absl::CancelledError(absl::StrCat("given up", kGoesOn));
    if (node.stopping()) return absl::UnavailableError(absl::StrCat("rekindled ends", kGoesOn));
  }
  return absl::OkStatus();
}

// Ends a job that lives, with all that is of the session that it leads: by itself within `grace`, or by
// force.
absl::Status EndSession(const Node& node, const Call& call, pid_t root, int root_pidfd,
                        absl::Duration grace) {
  const Deadline deadline(grace);
  if (::getsid(root) != root) {
    TellToEnd(root);
    RK_RETURN_IF_ERROR(AwaitExitOf(root_pidfd, deadline, node, call));
    KillAndAwaitExit(root_pidfd);
    return absl::OkStatus();
  }
  std::map<pid_t, UniqueFd> others = OthersOf(root);
  TellToEnd(root);
  for (const auto& [pid, pidfd] : others) {
    if (::getpgid(pid) == root) continue;
    SendSignal(pidfd.get(), SIGTERM);
    SendSignal(pidfd.get(), SIGCONT);
  }
  RK_RETURN_IF_ERROR(AwaitExitOf(root_pidfd, deadline, node, call));
  // As long as one of it lives, or its leader is not reaped, the session's number is nobody else's.
  const auto still_its = [&] {
    if (!AwaitExit(root_pidfd, absl::ZeroDuration())) return true;
    return std::any_of(others.begin(), others.end(), [&](const auto& other) {
      const absl::StatusOr<ProcessStat> stat = ReadProcessStat(other.first);
      return stat.ok() && stat->session == root && !AwaitExit(other.second.get(), absl::ZeroDuration());
    });
  };
  if (still_its()) others.merge(OthersOf(root));  // started meanwhile
  KillAndAwaitExit(root_pidfd);
  for (const auto& [pid, pidfd] : others) RK_RETURN_IF_ERROR(AwaitExitOf(pidfd.get(), deadline, node, call));
  if (still_its()) KillJobMembers({root, "", std::nullopt, {}, {}});
  for (const auto& [pid, pidfd] : others) KillAndAwaitExit(pidfd.get());
  return absl::OkStatus();
}

// SIGTERM, then, if need be, SIGKILL, for a job that nobody would bring back.
absl::Status StopUnsupervised(Node& node, const Call& call, const std::string& name, absl::Duration grace,
                              bool checkpoint, v1::StopJobResponse* response) {
  RK_ASSIGN_OR_RETURN(JobRecord job, FindTarget(node, call.caller, 0, name));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, job.owner, "stop", job.pid));
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, job.pid, 0)));
  if (!pidfd.valid() || !JobRegistry::Lives(job))
    return absl::NotFoundError(absl::StrCat("job '", name, "' has just ended"));
  if (checkpoint) {
    v1::CheckpointRequest request;
    request.set_job(name);
    request.set_reference(absl::StrCat(
        ImageNameOf(name), ":", absl::FormatTime("%Y%m%d-%H%M%E3S", absl::Now(), absl::UTCTimeZone())));
    RK_RETURN_IF_ERROR(Checkpoint(node, call, request, [&](const v1::CheckpointEvent& event) {
      if (event.has_result()) response->set_image(event.result().image().reference());
      return true;
    }));
  }
  // After its image the number may be another's.
  if (!AwaitExit(pidfd.get(), absl::ZeroDuration()))
    RK_RETURN_IF_ERROR(EndSession(node, call, job.pid, pidfd.get(), grace));
  if (const std::optional<ExitState> exit = RecordedExit(node, job)) {
    response->mutable_exited()->set_exit_code(exit->code);
    response->mutable_exited()->set_signal(exit->signal);
    response->mutable_exited()->set_pid(job.pid);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSupervised(Node& node, const Call& call, const v1::RunRequest& request,
                           const EventSink<v1::JobEvent>& send) {
  if (!node.options().daemon && request.detach()) {
    return absl::FailedPreconditionError(
        "a supervised job needs somebody who stays: start rekindled, or leave --detach out");
  }
  v1::JobEvent event;
  RK_ASSIGN_OR_RETURN(std::shared_ptr<void> room, TakeRoomForJob(node, call.caller));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<SupervisedJob> job,
                      node.supervisor().Run(call, request, event.mutable_started()));
  room.reset();
  std::shared_ptr<JobEventQueue> queue = job->events().Follow();
  // Whoever gave it up would not know that it runs.
  if (call.IsCancelled() || !send(event)) {
    RK_RETURN_IF_ERROR(
        job->Stop(absl::Seconds(kDefaultGraceSeconds), /*checkpoint=*/false, nullptr).status());
    return absl::CancelledError("interrupted; the job that was just started was ended again");
  }
  if (request.detach()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(SendEvents(node, call, *queue, send));
  // A daemon goes on with it when we have gone.
  if (!node.options().daemon) {
    node.supervisor().AwaitCopies(Deadline(kLastCopyMayTake), /*of_ended=*/true,
                                  [&] { return call.IsCancelled(); });
  }
  return absl::OkStatus();
}

absl::Status AttachJob(Node& node, const Call& call, const v1::AttachJobRequest& request,
                       const EventSink<v1::JobEvent>& send) {
  absl::StatusOr<std::shared_ptr<SupervisedJob>> found = FindFor(node, call, request.job(), "attach to");
  if (absl::IsNotFound(found.status())) {
    RK_ASSIGN_OR_RETURN(const bool may, MayUseRecorded(node, call, request.job(), "attach to"));
    if (const absl::Status held = node.supervisor().CheckNameIsFree(request.job()); may && !held.ok())
      return absl::FailedPreconditionError(
          absl::StrCat("job '", request.job(), "' can't be followed from here: ", held.message()));
    const absl::StatusOr<JobRecord> other = node.jobs().FindByName(request.job());
    const std::string records = SupervisedDirectory(node.options().store);
    if (other.ok() && absl::IsNotFound(ReadSupervisedRecord(records, request.job()).status()) &&
        node.policy().MayUse(call.caller, other->owner)) {
      return absl::NotFoundError(absl::StrCat("job '", request.job(), "' is not supervised: 'rekindle logs ",
                                              request.job(), " --follow' shows what it writes"));
    }
  }
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<SupervisedJob> job, std::move(found));
  std::shared_ptr<JobEventQueue> queue = job->events().Follow();
  v1::JobEvent event;
  *event.mutable_started()->mutable_job() = job->Describe();
  event.mutable_started()->set_log_offset(UINT64_MAX);  // from now on
  send(event);
  // Those who followed when it began to wait have been told.
  const v1::SupervisedState& state = event.started().job().supervised();
  absl::string_view why = state.last_error();
  if (state.phase() == "waiting" && absl::ConsumePrefix(&why, kNotYet)) {
    v1::JobEvent waits;
    waits.mutable_waits()->set_why(std::string(why));
    waits.mutable_waits()->set_down(true);
    send(waits);
  }
  if (const std::optional<v1::JobEvent> trouble = job->TroubleOfCopies()) send(*trouble);
  return SendEvents(node, call, *queue, send);
}

absl::Status StopJob(Node& node, const Call& call, const v1::StopJobRequest& request,
                     v1::StopJobResponse* response) {
  if (!(request.grace_seconds() >= 0 && request.grace_seconds() <= 86400))
    return absl::InvalidArgumentError("the grace must be from 0 to 86400 seconds");
  const absl::Duration grace =
      absl::Seconds(request.has_grace_seconds() ? request.grace_seconds() : kDefaultGraceSeconds);
  std::string name = request.job();
  if (name.empty()) {
    RK_ASSIGN_OR_RETURN(JobRecord target, FindTarget(node, call.caller, request.pid(), ""));
    name = target.name;
    if (name.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "process ", request.pid(), " is no job of Rekindle's: 'rekindle ps' lists those there are"));
    }
  }
  absl::StatusOr<std::shared_ptr<SupervisedJob>> supervised = FindFor(node, call, name, "stop");
  // Without a daemon it may have been left behind by the command that supervised it, or be another command's.
  absl::Status taken;
  if (absl::IsNotFound(supervised.status())) {
    RK_ASSIGN_OR_RETURN(const bool may, MayUseRecorded(node, call, name, "stop"));
    taken = may ? node.supervisor().TakeOver(name)
                : ReadSupervisedRecord(SupervisedDirectory(node.options().store), name).status();
    if (absl::IsAlreadyExists(taken) || absl::IsFailedPrecondition(taken))
      return absl::FailedPreconditionError(
          absl::StrCat("job '", name, "' can't be stopped: ", taken.message()));
    if (taken.ok()) supervised = FindFor(node, call, name, "stop");
    // It would be brought back by whoever reads its record later.
    const bool no_supervised_one =
        absl::IsNotFound(taken) || absl::IsDataLoss(taken) || absl::IsInvalidArgument(taken);
    if (!taken.ok() && !no_supervised_one) return Annotate(taken, absl::StrCat("stopping job '", name, "'"));
  }
  if (supervised.ok() && !(*supervised)->Ended()) {
    RK_ASSIGN_OR_RETURN(*response, (*supervised)->Stop(grace, request.checkpoint(), call.cancelled));
    return absl::OkStatus();
  }
  if (!supervised.ok() && !absl::IsNotFound(supervised.status())) return supervised.status();
  const absl::Status stopped = StopUnsupervised(node, call, name, grace, request.checkpoint(), response);
  // Nobody would bring it back.
  if (absl::IsNotFound(stopped) && absl::IsDataLoss(taken)) return taken;
  return stopped;
}

}  // namespace rekindle::daemon
