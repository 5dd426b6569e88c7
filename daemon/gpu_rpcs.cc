// GPUs: who uses them, and moving jobs off and onto them.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "base/uuid.h"
#include "daemon/gpu_swap.h"
#include "daemon/process_info.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"

namespace rekindle::daemon {
namespace {

constexpr double kLockSeconds = 10;
constexpr double kLeaseSeconds = 60;

// A machine without a driver does not support these commands; nothing is missing that could be looked for.
absl::Status WithoutDriver(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::UnimplementedError(status.message()) : status;
}

// The root process of the job that a request names, if the caller may `verb` it.
absl::StatusOr<pid_t> FindGpuTarget(Node& node, const Call& call, pid_t pid, const std::string& name,
                                    absl::string_view verb) {
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(JobRecord job, FindTarget(node, call.caller, pid, name));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, job.owner, verb, job.pid));
  auto info = node.gpus().Info();
  if (!info.ok()) return WithoutDriver(info.status());
  return job.pid;
}

absl::Duration LockTimeout(double seconds) { return absl::Seconds(seconds > 0 ? seconds : kLockSeconds); }

// For moves that have not begun.
std::function<bool()> GivesUp(const Node& node, const Call& call) {
  return [&] { return call.cancelled() || node.stopping(); };
}

std::string ParkedBy(const Call& call) { return absl::StrCat("parked by uid ", call.caller.uid); }

// Leases mean something only where one service knows of all of them.
absl::Status CheckIsDaemon(const Node& node) {
  if (node.options().daemon) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "leases are the daemon's: start rekindled, or use `rekindle gpu park`, `resume` and `swap`");
}

void UseToProto(const gpu::GpuUse& use, v1::GpuUse* out) {
  out->set_pid(use.pid);
  out->set_uuid(use.uuid);
  if (use.bytes) out->set_bytes(*use.bytes);
}

// The job that a process belongs to: of those that Rekindle started the one that has it in its tree, else the
// process by itself.
std::map<pid_t, JobRecord> JobsByProcess(Node& node) {
  std::map<pid_t, JobRecord> jobs;
  absl::StatusOr<std::vector<JobRecord>> records = node.jobs().List();
  if (!records.ok()) return jobs;
  const ProcessChildren all;
  for (const JobRecord& record : *records) {
    if (!JobRegistry::Lives(record)) continue;
    for (pid_t pid : all.Tree(record.pid)) jobs.emplace(pid, record);
  }
  return jobs;
}

}  // namespace

absl::Status ListGpus(Node& node, const Call& call, const v1::ListGpusRequest&,
                      v1::ListGpusResponse* response) {
  auto info = node.gpus().Info();
  if (!info.ok()) return WithoutDriver(info.status());
  RK_ASSIGN_OR_RETURN(gpu::DeviceView view, node.gpus().Devices());
  node.gpus().WatchAgain();
  RK_ASSIGN_OR_RETURN(std::vector<gpu::LedgerEntry> parked, node.gpus().Parked());
  for (gpu::LedgerEntry& entry : node.gpus().ParkedElsewhere()) parked.push_back(std::move(entry));
  response->set_driver(info->driver);
  response->set_cuda_version(info->cuda_version);
  response->set_means(info->means);
  for (const gpu::GpuDevice& device : view.devices) {
    v1::GpuDevice* out = response->add_devices();
    out->set_uuid(device.uuid);
    out->set_model(device.model);
    if (device.memory_known) {
      out->set_total_bytes(device.total_bytes);
      out->set_free_bytes(device.free_bytes);
    }
    out->set_mig(device.mig);
    out->set_uses_unknown(!device.uses_known);
    out->set_lost(device.lost);
    out->set_trouble(ToUtf8(device.trouble));
  }
  for (const std::string& gpu : view.unreachable) response->add_unreachable(ToUtf8(gpu));

  std::map<pid_t, v1::GpuJob> jobs;  // by root
  const std::map<pid_t, JobRecord> started = JobsByProcess(node);
  auto job_of = [&](pid_t pid, pid_t root) -> v1::GpuJob& {
    auto record = started.find(pid);
    if (record != started.end()) root = record->second.pid;
    v1::GpuJob& job = jobs[root];
    job.set_pid(root);
    if (record != started.end()) job.set_name(record->second.name);
    if (std::find(job.pids().begin(), job.pids().end(), pid) == job.pids().end()) job.add_pids(pid);
    return job;
  };
  std::set<pid_t> listed;
  std::map<pid_t, std::string> unwatched;
  for (const gpu::LedgerEntry& entry : parked) {
    v1::GpuJob& job = job_of(entry.pid, entry.job);
    job.set_parked(true);
    job.set_why(ToUtf8(entry.why));
    job.set_driver(ToUtf8(entry.driver));
    if (const std::string trouble = node.gpus().DriverTrouble(entry); !trouble.empty())
      job.set_trouble(ToUtf8(trouble));
    if (const std::string trouble = node.gpus().WatchTrouble(entry); !trouble.empty())
      unwatched.emplace(entry.pid, trouble);
    for (const gpu::GpuUse& use : entry.uses) UseToProto(use, job.add_uses());
    listed.insert(entry.pid);
  }
  for (const gpu::GpuUse& use : view.uses) {
    if (listed.count(use.pid) > 0 || !ReadProcessStat(use.pid).ok()) continue;
    UseToProto(use, job_of(use.pid, use.pid).add_uses());
  }
  for (pid_t pid : node.gpus().UsersMissingIn(view)) {
    if (listed.count(pid) == 0) job_of(pid, pid);
  }
  const std::map<pid_t, GpuJobSnapshot> known = node.gpu_jobs().Known();
  for (auto& [root, job] : jobs) {
    absl::StatusOr<ProcessInfo> process = ReadProcessInfo(root);
    if (!process.ok() || !node.policy().MayUse(call.caller, process->uid)) continue;
    job.set_owner_uid(process->uid);
    job.set_command(ToUtf8(CommandLineOf(root)));
    std::vector<pid_t> pids(job.pids().begin(), job.pids().end());
    std::set<std::string> states;
    for (pid_t moved : node.gpus().BeingMoved(pids)) {
      states.insert("being moved");
      std::erase(pids, moved);
    }
    const auto told = node.gpus().States(pids, gpu::DriverClient::Purpose::kToShow);
    for (size_t i = 0; i < told.size(); ++i) {
      states.insert(told[i].ok() ? std::string(gpu::NameOf(*told[i])) : "unknown");
      // One that is stopped runs into nothing.
      const auto stat = ReadProcessStat(pids[i]);
      const bool is_out = told[i].ok() ? *told[i] == gpu::ProcessState::kCheckpointed
                                       : stat.ok() && stat->state != 'T' && stat->state != 't';
      if (is_out && unwatched.count(pids[i]) > 0 && job.trouble().empty())
        job.set_trouble(ToUtf8(unwatched[pids[i]]));
    }
    job.set_state(absl::StrJoin(states, ", "));
    if (!job.parked() && states.count(std::string(gpu::NameOf(gpu::ProcessState::kCheckpointed))) > 0) {
      job.set_why(
          "it is in host memory, and nothing is noted here of who has moved it and where it was; unless "
          "another "
          "tool is at it, `rekindle gpu resume` brings it back");
    }
    if (auto leased = known.find(root); leased != known.end()) {
      job.set_leases(static_cast<uint32_t>(leased->second.leases));
      job.set_pinned(leased->second.pinned);
      for (const std::string& id : leased->second.ids) job.add_lease_ids(id);
    }
    *response->add_jobs() = std::move(job);
  }
  return absl::OkStatus();
}

absl::Status ParkGpu(Node& node, const Call& call, const v1::ParkGpuRequest& request,
                     v1::GpuMoveResponse* response) {
  RK_ASSIGN_OR_RETURN(pid_t job, FindGpuTarget(node, call, request.pid(), request.job(), "park"));
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(GpuMoved moved,
                      node.gpu_jobs().Park(job, LockTimeout(request.lock_timeout_seconds()), ParkedBy(call)));
  response->set_bytes(moved.bytes);
  response->set_seconds(watch.seconds());
  response->set_nothing_to_do(!moved.moved);
  return absl::OkStatus();
}

absl::Status ResumeGpu(Node& node, const Call& call, const v1::ResumeGpuRequest& request,
                       v1::GpuMoveResponse* response) {
  RK_ASSIGN_OR_RETURN(pid_t job, FindGpuTarget(node, call, request.pid(), request.job(), "resume"));
  RK_ASSIGN_OR_RETURN(gpu::DevicePairs wanted, FromProto(request.gpu_map()));
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(GpuMoved moved, node.gpu_jobs().Resume(job, wanted, GivesUp(node, call)));
  response->set_bytes(moved.bytes);
  response->set_seconds(watch.seconds());
  response->set_nothing_to_do(!moved.moved);
  return absl::OkStatus();
}

absl::Status SwapGpu(Node& node, const Call& call, const v1::SwapGpuRequest& request,
                     v1::GpuMoveResponse* response) {
  RK_ASSIGN_OR_RETURN(pid_t out, FindGpuTarget(node, call, request.out_pid(), request.out_job(), "park"));
  RK_ASSIGN_OR_RETURN(pid_t in, FindGpuTarget(node, call, request.in_pid(), request.in_job(), "resume"));
  if (out == in) {
    return absl::InvalidArgumentError("swapping needs two different jobs: one to park and one to resume");
  }
  RK_ASSIGN_OR_RETURN(GpuSwapped swapped,
                      SwapOnGpu(node.gpu_jobs(), out, in, LockTimeout(request.lock_timeout_seconds()),
                                ParkedBy(call), GivesUp(node, call)));
  response->set_bytes(swapped.out.bytes + swapped.in.bytes);
  response->set_seconds(swapped.seconds);
  response->set_nothing_to_do(!swapped.out.moved && !swapped.in.moved);
  const std::vector<std::pair<std::string, double>> phases = {{"park", swapped.park_seconds},
                                                              {"resume", swapped.resume_seconds}};
  ToProto(phases, response->mutable_phases());
  return absl::OkStatus();
}

namespace {

// What a client calls a lease.
absl::Status CheckLeaseId(const std::string& id) {
  constexpr size_t kLongest = 64;
  const bool fits =
      id.size() <= kLongest && absl::c_all_of(id, [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", id, "' can't be the ID of a lease: give at most ",
                                                 kLongest,
                                                 " letters, digits, '-', '_' and '.', such as a UUID"));
}

// To be confirmed, or taken back.
absl::StatusOr<GpuGrant> TakeLease(Node& node, const Call& call, const v1::LeaseGpuRequest& request,
                                   LeaseKind kind, v1::LeaseGpuResponse* response) {
  RK_RETURN_IF_ERROR(CheckIsDaemon(node));
  RK_ASSIGN_OR_RETURN(pid_t job, FindGpuTarget(node, call, request.pid(), request.job(), "lease"));
  LeaseOptions options;
  options.kind = kind;
  options.timeout = absl::Seconds(request.timeout_seconds() > 0 ? request.timeout_seconds() : kLeaseSeconds);
  options.pin = request.pin();
  options.cancelled = GivesUp(node, call);
  if (request.with_id() && kind == LeaseKind::kLasting) options.id = NewUuid();
  if (!request.lease_id().empty()) {
    if (kind == LeaseKind::kHeld || request.with_id()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a lease with an ID of the client's ",
                       kind == LeaseKind::kHeld ? "lasts until it is released: HoldGpu's ends with its call"
                                                : "needs none of the daemon's: leave out with_id"));
    }
    RK_RETURN_IF_ERROR(CheckLeaseId(request.lease_id()));
    options.id = request.lease_id();
  }
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(GpuGrant grant, node.gpu_jobs().Lease(job, options));
  // Nobody would ever give it back.
  if (call.cancelled()) {
    node.gpu_jobs().TakeBack(grant);
    return absl::CancelledError("the caller has gone; its lease is given back");
  }
  response->set_bytes(grant.bytes);
  response->set_seconds(watch.seconds());
  response->set_lease_id(grant.id);
  return grant;
}

}  // namespace

absl::Status LeaseGpu(Node& node, const Call& call, const v1::LeaseGpuRequest& request,
                      v1::LeaseGpuResponse* response) {
  RK_ASSIGN_OR_RETURN(const GpuGrant grant, TakeLease(node, call, request, LeaseKind::kLasting, response));
  node.gpu_jobs().Confirm(grant);
  return absl::OkStatus();
}

absl::Status ReleaseGpu(Node& node, const Call& call, const v1::ReleaseGpuRequest& request,
                        v1::ReleaseGpuResponse* response) {
  RK_RETURN_IF_ERROR(CheckIsDaemon(node));
  RK_ASSIGN_OR_RETURN(pid_t job, FindGpuTarget(node, call, request.pid(), request.job(), "release"));
  if (request.unpin() && !request.lease_id().empty()) {
    return absl::InvalidArgumentError(
        "a pin is the job's and no lease's: release the lease by its ID, and unpin the job by another call");
  }
  RK_ASSIGN_OR_RETURN(int left, request.unpin()
                                    ? node.gpu_jobs().Unpin(job)
                                    : node.gpu_jobs().Release(job, LeaseKind::kLasting, request.lease_id()));
  response->set_leases(static_cast<uint32_t>(left));
  return absl::OkStatus();
}

absl::Status HoldGpu(Node& node, const Call& call, const v1::HoldGpuRequest& request,
                     const EventSink<v1::LeaseGpuResponse>& send) {
  v1::LeaseGpuResponse response;
  RK_ASSIGN_OR_RETURN(const GpuGrant grant,
                      TakeLease(node, call, request.lease(), LeaseKind::kHeld, &response));
  const pid_t job = grant.job.pid;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, job, 0)));
  // How soon it is seen that the client has gone; the job's end is seen at once.
  constexpr absl::Duration kLookForClient = absl::Milliseconds(100);
  constexpr absl::Duration kLookWhileOthersWait = absl::Milliseconds(5);
  const bool told = send(response);
  if (told) node.gpu_jobs().Confirm(grant);
  bool alive = process.valid();
  while (told && alive && !call.cancelled() && !node.stopping()) {
    const bool wanted = node.gpu_jobs().IsWanted(job);
    alive = !AwaitExit(process.get(), wanted ? kLookWhileOthersWait : kLookForClient);
  }
  // Its pin stays, where that is known to whoever asked for it.
  node.gpu_jobs().TakeBack(grant);
  if (!alive) return absl::NotFoundError(absl::StrCat("process ", job, " has ended, and its lease with it"));
  if (node.stopping())
    return absl::UnavailableError(absl::StrCat("rekindled ends, and with it the lease of process ", job));
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
