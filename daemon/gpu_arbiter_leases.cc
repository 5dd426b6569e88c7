// A request for a lease from its begin to its end, and the moves that it asks for.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "daemon/gpu_arbiter.h"
#include "daemon/gpu_arbiter_parts.h"

namespace rekindle::daemon {

namespace {

template <typename Job>
bool IsMoving(const Job& job) {
  return job.moving();
}
template <typename Job>
bool IsUsed(const Job& job) {
  return job.leases > 0 || job.pinned;
}

}  // namespace

absl::StatusOr<GpuLease> GpuArbiter::Lease(pid_t pid, const LeaseOptions& options) {
  Request request(options);
  absl::MutexLock lock(&mutex_);
  request.job = Find(pid, 0);
  if (request.job == nullptr) {
    ++counters_.refused;
    return UnknownJob(pid);
  }
  Job& job = *request.job;
  // So that nobody is sent to a server that has just died.
  RemoveIfDead(request.job);
  request.alive = true;
  LookAtTrees(Trees::kNew);

  absl::Status served;
  if (stopped_ || job.gone) {
    served = CheckWanted(request);
  } else if (!HasItAlready(job, options) &&
             (job.state != GpuJobState::kResident || AnyoneWaitsFor(job) || KinThat(job, IsMoving))) {
    request.devices = DevicesOf(job.bytes);
    queue_.push_back(&request);
    Reorder();
    served = Serve(request);
    queue_.remove(&request);
    Reorder();
    for (Request* other : queue_) other->nudged |= other->host_short;
  }
  if (!served.ok()) {
    ++(absl::IsDeadlineExceeded(served) ? counters_.timeouts
       : absl::IsCancelled(served)      ? counters_.cancelled
                                        : counters_.refused);
    return served;
  }
  const bool has_id = options.kind == LeaseKind::kLasting && !options.id.empty();
  bool is_new = true;
  if (has_id) {
    const auto [claims, made] = job.ids.try_emplace(options.id);
    ++claims->second.unconfirmed;
    is_new = made;
  }
  if (is_new) {
    ++counters_.leases;
    ++job.leases;
  }
  if (options.kind == LeaseKind::kHeld) ++job.held;
  // Those that ask for the same lease have it by now.
  for (Request* other : queue_) other->nudged |= has_id && other->job == request.job;
  job.pinned |= options.pin;
  Use(job);
  GpuLease lease;
  lease.job = job.id;
  lease.resumed = request.resumed;
  lease.parked = std::move(request.parked);
  lease.seconds = request.since.seconds();
  return lease;
}

bool GpuArbiter::HasItAlready(const Job& job, const LeaseOptions& options) const {
  return options.kind == LeaseKind::kLasting && job.ids.count(options.id) > 0 &&
         job.state == GpuJobState::kResident && KinThat(job, IsMoving) == nullptr;
}

absl::Status GpuArbiter::Serve(Request& request) {
  Job& job = *request.job;
  absl::Status served = CheckFits(job);
  for (bool first = true; served.ok(); first = false) {
    request.nudged = false;
    request.host_short = request.host_stuck = false;
    if (!request.alive) RemoveIfDead(request.job);
    request.alive = true;
    AskCancelled(request);
    absl::Status wanted = CheckWanted(request);
    if (!wanted.ok() && !(first && absl::IsDeadlineExceeded(wanted))) return wanted;
    if (HasItAlready(job, request.options)) return absl::OkStatus();
    if (request.devices != DevicesOf(job.bytes)) {
      request.devices = DevicesOf(job.bytes);
      Reorder();
    }
    if (!request.turn || job.moving() || KinThat(job, IsMoving)) {
      AwaitChange(request, absl::InfiniteDuration());
    } else if (job.state == GpuJobState::kResident) {
      return absl::OkStatus();
    } else {
      RK_RETURN_IF_ERROR(wanted);
      request.busy = true;
      served = Advance(request);
      request.busy = false;
      Reorder();
    }
  }
  return served;
}

// One step towards having the job on its GPUs, or a wait.
absl::Status GpuArbiter::Advance(Request& request) {
  Job& job = *request.job;
  RK_RETURN_IF_ERROR(CheckFits(job));
  if (const auto now = SteadyClock::now(); now >= request.reread_at) {
    request.failed.clear();
    request.swept = false;
    request.reread_at = now + absl::ToChronoNanoseconds(options_.reread_interval);
  }
  mutex_.Unlock();
  absl::StatusOr<FreeDeviceMemory> free = moves_.FreeMemory();
  mutex_.Lock();
  if (!free.ok()) {
    ++counters_.failures;
    return Annotate(free.status(),
                    absl::StrCat("can't tell whether there is device memory for ", job.name()));
  }
  AskCancelled(request);
  if (job.state != GpuJobState::kParked || !CheckWanted(request).ok()) return absl::OkStatus();
  request.free = *std::move(free);

  RK_ASSIGN_OR_RETURN(const DeviceBytes shortage, ShortageOf(request));
  if (!shortage.empty()) {
    LookAtResidents();
    if (job.state != GpuJobState::kParked || !CheckWanted(request).ok()) return absl::OkStatus();
  }
  if (!shortage.empty() || request.squeeze) {
    LookAtTrees(Trees::kAll);
    if (job.state != GpuJobState::kParked || KinThat(job, IsMoving) || !CheckWanted(request).ok())
      return absl::OkStatus();
  }
  std::vector<JobPtr> victims;
  if (!shortage.empty()) {
    victims = ChooseVictims(request, shortage, HostRoom(), Candidates::kNow);
  } else if (!request.squeeze) {
    return ResumeJob(request);
  } else {
    for (const std::string& uuid : request.devices) {
      if (victims.empty()) victims = ChooseVictims(request, {{uuid, 1}}, HostRoom(), Candidates::kNow);
    }
  }
  if (!victims.empty()) {
    request.squeeze = false;
    ParkVictims(request, victims);
    return absl::OkStatus();
  }
  if (!request.swept) {
    request.swept = true;
    RemoveDead();
    return absl::OkStatus();
  }
  if (!shortage.empty()) RK_RETURN_IF_ERROR(CheckHope(request, shortage));
  AwaitChange(request, options_.reread_interval);
  request.squeeze = false;
  return absl::OkStatus();
}

absl::StatusOr<DeviceBytes> GpuArbiter::ShortageOf(const Request& request) const {
  const Job& job = *request.job;
  DeviceBytes shortage;
  for (const auto& [uuid, needed] : job.bytes) {
    if (auto unknown = request.free.unknown.find(uuid); unknown != request.free.unknown.end()) {
      if (unknown->second.ok()) continue;
      return Annotate(unknown->second, absl::StrCat(job.name(), " can't go back onto its GPU"));
    }
    auto it = request.free.bytes.find(uuid);
    if (it == request.free.bytes.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(job.name(), " can't go back to ", uuid,
                       ": this machine has no such GPU now; look at `nvidia-smi -L` and the kernel's log"));
    }
    if (it->second < needed) shortage[uuid] = needed - it->second;
  }
  return shortage;
}

void GpuArbiter::LookAtResidents() {
  std::vector<GpuJobId> residents;
  for (const auto& [pid, job] : jobs_) {
    if (job->state == GpuJobState::kResident) residents.push_back(job->id);
  }
  if (residents.empty()) return;
  mutex_.Unlock();
  std::map<pid_t, DeviceBytes> now = moves_.BytesOf(residents);
  mutex_.Lock();
  for (const GpuJobId& id : residents) {
    JobPtr job = Find(id.pid, id.start_ticks);
    auto bytes = now.find(id.pid);
    if (job == nullptr || job->state != GpuJobState::kResident || bytes == now.end()) continue;
    // Nobody is nudged: who asks is the one whose turn it is, and one that always changes would have it look
    // without a pause.
    job->bytes = std::move(bytes->second);
    job->anywhere = false;
  }
}

absl::Status GpuArbiter::ResumeJob(Request& request) {
  const JobPtr& job = request.job;
  job->state = GpuJobState::kResuming;
  mutex_.Unlock();
  absl::Status resumed = moves_.Resume(job->id);
  mutex_.Lock();
  job->state = resumed.ok() ? GpuJobState::kResident : GpuJobState::kParked;
  if (resumed.ok() || job->gone) Charge(*job, 0);
  if (resumed.ok()) {
    ++counters_.resumes;
    Use(*job);
    request.resumed = true;
    MoveKin(*job);
    Nudge(*job);
    return absl::OkStatus();
  }
  // Others aren't nudged: there is nothing more for them than before.
  ++counters_.failures;
  request.last_error = resumed;
  RemoveIfDead(job);
  if (job->gone) return absl::OkStatus();
  if (absl::IsResourceExhausted(resumed)) {
    request.squeeze = true;
  } else if (absl::IsAborted(resumed) || absl::IsUnavailable(resumed)) {
    AwaitChange(request, options_.reread_interval);
  } else {
    return Annotate(resumed, absl::StrCat(job->name(), " could not be resumed and is still parked"));
  }
  return absl::OkStatus();
}

void GpuArbiter::ParkVictims(Request& request, const std::vector<JobPtr>& victims) {
  // All at once: who had host memory for some of them only could wait for ever for one that has the rest.
  for (const JobPtr& victim : victims) {
    victim->state = GpuJobState::kParking;
    Charge(*victim, HostBytes(*victim));
  }
  bool go_on = true;
  for (const JobPtr& victim : victims) {
    AskCancelled(request);
    if (!go_on || victim->gone || !CheckWanted(request).ok()) {
      victim->state = GpuJobState::kResident;
      Charge(*victim, 0);
      Nudge(*victim);
      continue;
    }
    absl::Status parked = ParkOne(victim);
    if (parked.ok()) {
      ++counters_.evictions;
      request.parked.push_back(victim->id.pid);
    } else {
      // Others may do in its place, and without the rest.
      go_on = false;
      request.failed[victim] = parked;
    }
  }
}

// A job that is kParking, and charged for.
absl::Status GpuArbiter::ParkOne(const JobPtr& job) {
  mutex_.Unlock();
  absl::Status parked = moves_.Park(job->id);
  mutex_.Lock();
  job->state = parked.ok() ? GpuJobState::kParked : GpuJobState::kResident;
  if (!parked.ok() || job->gone) {
    Charge(*job, 0);
    ChargePartsOnce(job.get());
  }
  if (parked.ok() && !job->gone) MoveKin(*job);
  Nudge(*job);
  if (parked.ok()) return parked;
  ++counters_.failures;
  RemoveIfDead(job);
  return parked;
}

void GpuArbiter::AwaitChange(Request& request, absl::Duration at_most) {
  if (!request.waited) ++counters_.waits;
  request.waited = true;
  request.alive = false;
  request.busy = false;
  Reorder();
  const Stopwatch waited;
  for (;;) {
    absl::Duration left = std::min(request.Left(), at_most - absl::Seconds(waited.seconds()));
    if (request.nudged || request.cancelled || left <= absl::ZeroDuration()) return;
    if (request.options.cancelled) left = std::min(left, options_.cancel_interval);
    AwaitUntil(mutex_, absl::Condition(&request.nudged), Deadline(left));
    AskCancelled(request);
  }
}

void GpuArbiter::AskCancelled(Request& request) {
  if (!request.options.cancelled || request.cancelled) return;
  mutex_.Unlock();
  const bool cancelled = request.options.cancelled();
  mutex_.Lock();
  request.cancelled = cancelled;
}

absl::Status GpuArbiter::Park(pid_t pid) {
  absl::MutexLock lock(&mutex_);
  for (bool swept = false;; swept = true) {
    LookAtTrees(Trees::kAll);
    JobPtr job = Find(pid, 0);
    if (job == nullptr) {
      return UnknownJob(pid);
    }
    if (job->state == GpuJobState::kParked) return absl::OkStatus();
    const JobPtr moving = job->moving() ? job : KinThat(*job, IsMoving);
    if (moving != nullptr)
      return absl::AbortedError(absl::StrCat(moving->name(), " is being moved: try again"));
    if (const JobPtr used = IsUsed(*job) ? job : KinThat(*job, IsUsed); used != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          job->name(), " is not parked: ",
          used == job ? "it" : absl::StrCat(used->name(), ", of the same process tree,"), " is ",
          used->pinned
              ? absl::StrCat("pinned; unpin it first (`rekindle gpu release ", used->id.pid, " --unpin`)")
              : absl::StrCat("leased; release it first (`rekindle gpu release ", used->id.pid, "`)")));
    }
    const uint64_t bytes = HostBytes(*job);
    if (bytes <= HostRoom()) {
      job->state = GpuJobState::kParking;
      Charge(*job, bytes);
      return ParkOne(job);
    }
    if (swept) {
      return absl::ResourceExhaustedError(absl::StrCat(
          job->name(), " is not parked: it needs ", FormatBytes(bytes), " of host memory. ", DescribeHost()));
    }
    // Jobs that have ended unseen have no host memory any more.
    RemoveDead();
  }
}

}  // namespace rekindle::daemon
