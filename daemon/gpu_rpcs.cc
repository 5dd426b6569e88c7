// GPUs: who uses them, and moving jobs off and onto them.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "daemon/process_info.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"

namespace rekindle::daemon {
namespace {

constexpr double kLockSeconds = 10;

// A machine without a driver does not support these commands; nothing is missing that could be looked for.
absl::Status WithoutDriver(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::UnimplementedError(status.message()) : status;
}

struct GpuTarget {
  JobRecord job;
  std::vector<pid_t> pids;  // its processes that use CUDA
};

absl::StatusOr<GpuTarget> FindGpuTarget(Node& node, const Call& call, pid_t pid, const std::string& name,
                                        absl::string_view verb) {
  GpuTarget target;
  RK_ASSIGN_OR_RETURN(target.job, FindTarget(node, pid, name));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, target.job.owner, verb, target.job.pid));
  auto info = node.gpus().Info();
  if (!info.ok()) return WithoutDriver(info.status());
  RK_ASSIGN_OR_RETURN(target.pids, node.gpus().Users(ProcessTree(target.job.pid)));
  if (target.pids.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", target.job.pid, " and its children use no CUDA: there is nothing to ", verb));
  }
  return target;
}

// Bytes moved.
absl::StatusOr<uint64_t> Park(Node& node, const GpuTarget& target, const Call& call, double lock_timeout) {
  RK_ASSIGN_OR_RETURN(auto held,
                      node.gpus().TakeOut(target.job.pid, target.pids,
                                          absl::Seconds(lock_timeout > 0 ? lock_timeout : kLockSeconds)));
  const uint64_t bytes = held->moved_bytes();
  RK_RETURN_IF_ERROR(held->Park(absl::StrCat("parked by uid ", call.caller.uid)));
  Log(LogLevel::kInfo, absl::StrCat("job ", target.job.pid, " is parked"));
  return bytes;
}

// Bytes moved.
absl::StatusOr<uint64_t> Resume(Node& node, const GpuTarget& target, const gpu::DevicePairs& wanted) {
  std::vector<pid_t> pids;
  auto states = node.gpus().States(target.pids);
  for (size_t i = 0; i < states.size(); ++i) {
    if (!states[i].ok()) return states[i].status();
    if (*states[i] != gpu::ProcessState::kRunning) pids.push_back(target.pids[i]);
  }
  if (pids.empty()) return 0;
  gpu::GpuRecord record;
  record.pids = pids;
  uint64_t bytes = 0;
  RK_ASSIGN_OR_RETURN(std::vector<gpu::LedgerEntry> parked, node.gpus().Parked());
  for (const gpu::LedgerEntry& entry : parked) {
    if (std::find(pids.begin(), pids.end(), entry.pid) == pids.end()) continue;
    record.uses.insert(record.uses.end(), entry.uses.begin(), entry.uses.end());
    for (const gpu::GpuUse& use : entry.uses) bytes += use.bytes.value_or(0);
  }
  gpu::DevicePairs pairs = wanted;
  auto view = node.gpus().Devices();
  if (view.ok() && !wanted.empty()) {
    const std::map<std::string, uint64_t> had = gpu::BytesByDevice(record.uses);
    for (const gpu::GpuDevice& device : view->devices) {
      if (had.count(device.uuid) > 0) record.devices.push_back(device);
    }
    RK_ASSIGN_OR_RETURN(pairs, node.gpus().PlanRestore(record, wanted, false));
  }
  RK_RETURN_IF_ERROR(node.gpus().PutOn(target.job.pid, pids, record, pairs));
  Log(LogLevel::kInfo, absl::StrCat("job ", target.job.pid, " has its GPU memory again"));
  return bytes;
}

void ToProto(const gpu::GpuUse& use, v1::GpuUse* out) {
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
  for (const JobRecord& record : *records) {
    if (!JobRegistry::Lives(record)) continue;
    for (pid_t pid : ProcessTree(record.pid)) jobs.emplace(pid, record);
  }
  return jobs;
}

}  // namespace

absl::Status ListGpus(Node& node, const Call& call, const v1::ListGpusRequest&,
                      v1::ListGpusResponse* response) {
  auto info = node.gpus().Info();
  if (!info.ok()) return WithoutDriver(info.status());
  RK_ASSIGN_OR_RETURN(gpu::DeviceView view, node.gpus().Devices());
  RK_ASSIGN_OR_RETURN(std::vector<gpu::LedgerEntry> parked, node.gpus().Parked());
  response->set_driver(info->driver);
  response->set_cuda_version(info->cuda_version);
  response->set_means(info->means);
  for (const gpu::GpuDevice& device : view.devices) {
    v1::GpuDevice* out = response->add_devices();
    out->set_uuid(device.uuid);
    out->set_model(device.model);
    out->set_total_bytes(device.total_bytes);
    out->set_free_bytes(device.free_bytes);
    out->set_mig(device.mig);
  }

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
  for (const gpu::LedgerEntry& entry : parked) {
    v1::GpuJob& job = job_of(entry.pid, entry.job);
    job.set_parked(true);
    job.set_why(entry.why);
    for (const gpu::GpuUse& use : entry.uses) ToProto(use, job.add_uses());
    listed.insert(entry.pid);
  }
  for (const gpu::GpuUse& use : view.uses) {
    if (listed.count(use.pid) > 0 || !ReadProcessStat(use.pid).ok()) continue;
    ToProto(use, job_of(use.pid, use.pid).add_uses());
  }
  const bool admin = node.policy().IsAdmin(call.caller);
  for (auto& [root, job] : jobs) {
    absl::StatusOr<ProcessInfo> process = ReadProcessInfo(root);
    if (!process.ok() || (!admin && process->uid != call.caller.uid)) continue;
    job.set_owner_uid(process->uid);
    job.set_command(CommandLineOf(root));
    std::vector<pid_t> pids(job.pids().begin(), job.pids().end());
    std::set<std::string> states;
    for (const absl::StatusOr<gpu::ProcessState>& state : node.gpus().States(pids)) {
      states.insert(state.ok() ? std::string(gpu::NameOf(*state)) : "unknown");
    }
    job.set_state(absl::StrJoin(states, ", "));
    *response->add_jobs() = std::move(job);
  }
  return absl::OkStatus();
}

absl::Status ParkGpu(Node& node, const Call& call, const v1::ParkGpuRequest& request,
                     v1::GpuMoveResponse* response) {
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(GpuTarget target, FindGpuTarget(node, call, request.pid(), request.job(), "park"));
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(uint64_t bytes, Park(node, target, call, request.lock_timeout_seconds()));
  response->set_bytes(bytes);
  response->set_seconds(watch.seconds());
  response->set_nothing_to_do(bytes == 0);
  return absl::OkStatus();
}

absl::Status ResumeGpu(Node& node, const Call& call, const v1::ResumeGpuRequest& request,
                       v1::GpuMoveResponse* response) {
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(GpuTarget target, FindGpuTarget(node, call, request.pid(), request.job(), "resume"));
  RK_ASSIGN_OR_RETURN(gpu::DevicePairs wanted, FromProto(request.gpu_map()));
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(uint64_t bytes, Resume(node, target, wanted));
  response->set_bytes(bytes);
  response->set_seconds(watch.seconds());
  response->set_nothing_to_do(bytes == 0);
  return absl::OkStatus();
}

absl::Status SwapGpu(Node& node, const Call& call, const v1::SwapGpuRequest& request,
                     v1::GpuMoveResponse* response) {
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(GpuTarget out, FindGpuTarget(node, call, request.out_pid(), request.out_job(), "park"));
  RK_ASSIGN_OR_RETURN(GpuTarget in, FindGpuTarget(node, call, request.in_pid(), request.in_job(), "resume"));
  if (out.job.pid == in.job.pid) {
    return absl::InvalidArgumentError("swapping needs two different jobs: one to park and one to resume");
  }
  Stopwatch watch;
  std::vector<std::pair<std::string, double>> phases;
  RK_ASSIGN_OR_RETURN(uint64_t parked, Park(node, out, call, request.lock_timeout_seconds()));
  phases.emplace_back("park", watch.seconds());
  Stopwatch second;
  absl::StatusOr<uint64_t> resumed = Resume(node, in, {});
  if (!resumed.ok()) {
    // The one that had the GPU gets it again.
    absl::Status back = Resume(node, out, {}).status();
    return Annotate(resumed.status(),
                    absl::StrCat("resuming process ", in.job.pid,
                                 back.ok() ? absl::StrCat(" (process ", out.job.pid, " runs on)")
                                           : absl::StrCat(" (and putting process ", out.job.pid,
                                                          " back failed: ", back.message(), ")")));
  }
  phases.emplace_back("resume", second.seconds());
  response->set_bytes(parked + *resumed);
  response->set_seconds(watch.seconds());
  ToProto(phases, response->mutable_phases());
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
