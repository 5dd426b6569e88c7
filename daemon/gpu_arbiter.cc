// Which jobs there are, and whose turn it is.
#include "daemon/gpu_arbiter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/human_units.h"
#include "daemon/gpu_arbiter_parts.h"

namespace rekindle::daemon {

GpuArbiter::GpuArbiter(GpuMoves* moves, GpuArbiterOptions options)
    : moves_(*moves), options_(std::move(options)), totals_(options_.device_totals) {}

GpuArbiter::~GpuArbiter() = default;

// ---- the set of jobs

GpuArbiter::JobPtr GpuArbiter::Find(pid_t pid, uint64_t start_ticks) const {
  auto it = jobs_.find(pid);
  if (it == jobs_.end()) return nullptr;
  if (start_ticks != 0 && it->second->id.start_ticks != start_ticks) return nullptr;
  return it->second;
}

uint64_t GpuArbiter::HostBytes(const Job& job) const {
  if (!job.anywhere) return Total(job.bytes) + options_.context_bytes * job.bytes.size();
  uint64_t most = 0;
  for (const auto& [uuid, bytes] : job.bytes) most = std::max(most, bytes);
  return most;
}

void GpuArbiter::Charge(Job& job, uint64_t bytes) {
  host_bytes_ = host_bytes_ - job.host_charge + bytes;
  job.host_charge = bytes;
}

void GpuArbiter::ChargePartsOnce(const Job* no_more) {
  const auto counts_with_another = [this](const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::any_of(jobs_.begin(), jobs_.end(), [&job](const auto& other) {
      return other.second->host_charge > 0 && job.IsUnder(*other.second);
    });
  };
  for (const auto& [pid, job] : jobs_) {
    if (job->state != GpuJobState::kParked) continue;
    if (counts_with_another(*job)) {
      Charge(*job, 0);
    } else if (no_more != nullptr && job->IsUnder(*no_more)) {
      Charge(*job, HostBytes(*job));
    }
  }
}

void GpuArbiter::Use(Job& job) { job.use = ++uses_; }

void GpuArbiter::ChangeBytes(Job& job, DeviceBytes bytes, bool anywhere) {
  Nudge(job);
  job.bytes = std::move(bytes);
  job.anywhere = anywhere;
  Charge(job, job.state == GpuJobState::kResident ? 0 : HostBytes(job));
  ChargePartsOnce();
  Nudge(job);
}

void GpuArbiter::Remove(const JobPtr& job) {
  job->gone = true;
  job->leases = job->held = 0;
  job->ids.clear();
  jobs_.erase(job->id.pid);
  // Until its move has ended it may use host memory.
  if (!job->moving()) Charge(*job, 0);
  ChargePartsOnce(job.get());
  Nudge(*job);
}

GpuArbiter::JobPtr GpuArbiter::FindOrMake(const GpuJobId& id) {
  JobPtr job = Find(id.pid, 0);
  if (job != nullptr && !(job->id == id)) {
    Remove(job);
    job = nullptr;
  }
  if (job == nullptr) {
    job = std::make_shared<Job>(id);
    jobs_[id.pid] = job;
    Use(*job);
  }
  return job;
}

void GpuArbiter::Add(const GpuJobId& id, DeviceBytes bytes, GpuJobState state, bool anywhere) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = FindOrMake(id);
  if (!job->moving())
    job->state = state == GpuJobState::kParked ? GpuJobState::kParked : GpuJobState::kResident;
  ChangeBytes(*job, std::move(bytes), anywhere);
}

void GpuArbiter::Inherit(const GpuJobId& id, int leases, bool pinned, const std::set<std::string>& ids) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = FindOrMake(id);
  job->leases += leases;
  for (const std::string& lease : ids) {
    const auto [claims, is_new] = job->ids.try_emplace(lease);
    claims->second.known = true;
    if (is_new) ++job->leases;
  }
  job->pinned |= pinned;
}

absl::Status GpuArbiter::SetBytes(const GpuJobId& id, DeviceBytes bytes) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(id.pid, id.start_ticks);
  if (job == nullptr) return absl::OkStatus();
  ChangeBytes(*job, std::move(bytes), false);
  const auto fits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return job->state != GpuJobState::kParking || host_bytes_ <= options_.host_budget;
  };
  if (fits()) return absl::OkStatus();
  RemoveDead();
  if (fits()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(job->name(), " is not parked: it has grown to ",
                                                   FormatBytes(Total(job->bytes)), " of device memory. ",
                                                   DescribeHost()));
}

void GpuArbiter::Forget(const GpuJobId& id) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(id.pid, id.start_ticks);
  if (job != nullptr) Remove(job);
}

void GpuArbiter::SetDeviceTotals(DeviceBytes totals) {
  absl::MutexLock lock(&mutex_);
  totals_ = std::move(totals);
  NudgeAll();
}

void GpuArbiter::RemoveIfDead(const JobPtr& job) {
  mutex_.Unlock();
  const bool alive = moves_.IsAlive(job->id);
  mutex_.Lock();
  if (alive || job->gone) return;
  ++counters_.deaths;
  Remove(job);
}

void GpuArbiter::RemoveDead() {
  std::vector<JobPtr> jobs;
  for (const auto& [pid, job] : jobs_) jobs.push_back(job);
  for (const JobPtr& job : jobs) RemoveIfDead(job);
}

void GpuArbiter::LookAtTrees(Trees which) {
  std::vector<GpuJobId> asked;
  // Others may become known meanwhile.
  for (;; which = Trees::kNew) {
    asked.clear();
    for (const auto& [pid, job] : jobs_) {
      if (which == Trees::kAll || !job->ancestors_known) asked.push_back(job->id);
    }
    if (asked.empty()) break;
    mutex_.Unlock();
    std::map<pid_t, std::vector<pid_t>> ancestors = moves_.AncestorsOf(asked);
    mutex_.Lock();
    for (const GpuJobId& id : asked) {
      const JobPtr job = Find(id.pid, id.start_ticks);
      if (job == nullptr) continue;
      job->ancestors = std::move(ancestors[id.pid]);
      job->ancestors_known = true;
    }
  }
  ChargePartsOnce();
}

GpuArbiter::JobPtr GpuArbiter::KinThat(const Job& job, bool (*is)(const Job&)) const {
  for (const auto& [pid, other] : jobs_) {
    if (other->IsKinOf(job) && is(*other)) return other;
  }
  return nullptr;
}

void GpuArbiter::MoveKin(const Job& job) {
  const bool parked = job.state == GpuJobState::kParked;
  for (const auto& [pid, other] : jobs_) {
    const bool moved = other->IsUnder(job) || (parked && job.IsUnder(*other));
    if (!moved || other->moving() || other->state == job.state) continue;
    other->state = job.state;
    Charge(*other, 0);  // it is charged for with the job
    Nudge(*other);
  }
}

// ---- whose turn it is

void GpuArbiter::Reorder() {
  std::set<std::string> taken;
  // Where a request has moved on to a GPU that its job did not have before, somebody later may be at work.
  for (const Request* request : queue_) {
    if (request->busy) taken.insert(request->devices.begin(), request->devices.end());
  }
  for (Request* request : queue_) {
    if (request->busy) continue;
    const bool had_turn = request->turn;
    request->turn = std::none_of(request->devices.begin(), request->devices.end(),
                                 [&](const std::string& uuid) { return taken.count(uuid) > 0; });
    if (request->turn && !had_turn) request->nudged = true;
    taken.insert(request->devices.begin(), request->devices.end());
  }
}

void GpuArbiter::Nudge(const Job& job) {
  for (Request* request : queue_) {
    if (request->host_short || request->job.get() == &job || request->job->IsKinOf(job) ||
        SharesDevice(request->devices, job.bytes))
      request->nudged = true;
  }
}

void GpuArbiter::NudgeAll() {
  for (Request* request : queue_) request->nudged = true;
}

bool GpuArbiter::AnyoneWaitsFor(const Job& job) const {
  return std::any_of(queue_.begin(), queue_.end(), [&](const Request* request) {
    return request->job.get() == &job || SharesDevice(request->devices, job.bytes);
  });
}

bool GpuArbiter::IsWanted(pid_t pid) const {
  absl::MutexLock lock(&mutex_);
  const JobPtr job = Find(pid, 0);
  return job != nullptr && AnyoneWaitsFor(*job);
}

void GpuArbiter::Wake() {
  absl::MutexLock lock(&mutex_);
  NudgeAll();
}

void GpuArbiter::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  NudgeAll();
}

// ---- leases that have been granted

absl::Status GpuArbiter::Release(pid_t pid, uint64_t start_ticks, LeaseKind kind, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  return End(Find(pid, start_ticks), pid, kind, id);
}

void GpuArbiter::Confirm(const GpuJobId& of, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const JobPtr job = Find(of.pid, of.start_ticks);
  if (job == nullptr) return;
  const auto claims = job->ids.find(id);
  if (claims == job->ids.end()) return;
  claims->second.known = true;
  if (claims->second.unconfirmed > 0) --claims->second.unconfirmed;
}

absl::Status GpuArbiter::TakeBack(const GpuJobId& of, LeaseKind kind, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const JobPtr job = Find(of.pid, of.start_ticks);
  if (job != nullptr && !id.empty()) {
    const auto claims = job->ids.find(id);
    if (claims != job->ids.end()) {
      if (claims->second.unconfirmed > 0) --claims->second.unconfirmed;
      if (claims->second.known || claims->second.unconfirmed > 0) return absl::OkStatus();
    }
  }
  return End(job, of.pid, kind, id);
}

absl::Status GpuArbiter::End(const JobPtr& job, pid_t pid, LeaseKind kind, const std::string& id) {
  if (job == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job ", pid, " has ended, and its leases with it, or is no CUDA job that is known"));
  }
  if (!id.empty()) {
    if (job->ids.erase(id) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(job->name(), " has no lease with the ID '", id,
                       "': it has ended, or was never given; nothing was released"));
    }
  } else if ((kind == LeaseKind::kHeld ? job->held : job->unnamed()) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        job->name(),
        job->leases == 0 ? " isn't leased: release a lease once"
        : job->ids.empty()
            ? " has no such lease: those of `rekindle gpu lease --hold` end with that command"
            : absl::StrCat(" has no such lease: those with an ID end by that (`rekindle gpu release ", pid,
                           " --lease-id ID`; `rekindle gpu ps --json` lists them), those of `rekindle gpu "
                           "lease --hold` with that command")));
  }
  --job->leases;
  if (kind == LeaseKind::kHeld) --job->held;
  Use(*job);
  if (job->leases == 0) Nudge(*job);
  return absl::OkStatus();
}

absl::Status GpuArbiter::Pin(pid_t pid, bool pinned) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(pid, 0);
  if (job == nullptr) {
    return UnknownJob(pid);
  }
  job->pinned = pinned;
  if (!pinned) Nudge(*job);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
