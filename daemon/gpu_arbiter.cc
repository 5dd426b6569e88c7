#include "daemon/gpu_arbiter.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// Of the search for who makes room; enough for an exact answer in any case but a contrived one.
constexpr int kSearchSteps = 20000;
// How many jobs a message lists.
constexpr size_t kListed = 8;

uint64_t Total(const DeviceBytes& bytes) {
  uint64_t total = 0;
  for (const auto& [uuid, on_device] : bytes) total += on_device;
  return total;
}

uint64_t On(const std::string& uuid, const DeviceBytes& bytes) {
  auto it = bytes.find(uuid);
  return it == bytes.end() ? 0 : it->second;
}

std::vector<std::string> DevicesOf(const DeviceBytes& bytes) {
  std::vector<std::string> devices;
  for (const auto& [uuid, on_device] : bytes) devices.push_back(uuid);
  return devices;
}

bool SharesDevice(const std::vector<std::string>& devices, const DeviceBytes& bytes) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const std::string& uuid) { return bytes.count(uuid) > 0; });
}

std::string ListSome(const std::vector<std::string>& items) {
  const size_t listed = std::min(items.size(), kListed);
  std::string text = absl::StrJoin(items.begin(), items.begin() + static_cast<ptrdiff_t>(listed), ", ");
  if (listed < items.size()) absl::StrAppend(&text, " and ", items.size() - listed, " more");
  return text;
}

absl::Status UnknownJob(pid_t pid) {
  return absl::NotFoundError(
      absl::StrCat("no CUDA job with PID ", pid, " is known: `rekindle gpu ps` lists those that are"));
}

// What parking a job would bring.
struct Offer {
  std::vector<uint64_t> frees;  // on each device that is short
  uint64_t host = 0;            // that it takes
};

// Finds the first set of offers, in the order of preference of their own order, that frees enough and that
// the host has room for.
class OfferSearch {
 public:
  OfferSearch(absl::Span<const Offer> offers, size_t devices) : offers_(offers) {
    rest_.assign(offers.size() + 1, std::vector<uint64_t>(devices, 0));
    for (size_t i = offers.size(); i-- > 0;) {
      for (size_t d = 0; d < devices; ++d) rest_[i][d] = rest_[i + 1][d] + offers[i].frees[d];
    }
  }

  // Indices of offers, or none.
  std::vector<size_t> Find(const std::vector<uint64_t>& shortage, uint64_t host_room) {
    if (!Try(0, shortage, host_room)) return {};
    // Smaller ones that were taken before a larger one that suffices need not go.
    for (size_t i = taken_.size(); i-- > 0;) {
      std::vector<size_t> without = taken_;
      without.erase(without.begin() + static_cast<ptrdiff_t>(i));
      if (Suffices(without, shortage)) taken_ = std::move(without);
    }
    return taken_;
  }

 private:
  bool Try(size_t next, const std::vector<uint64_t>& shortage, uint64_t host_room) {
    if (std::all_of(shortage.begin(), shortage.end(), [](uint64_t bytes) { return bytes == 0; })) return true;
    if (++steps_ > kSearchSteps) return false;
    for (size_t d = 0; d < shortage.size(); ++d) {
      if (rest_[next][d] < shortage[d]) return false;
    }
    const Offer& offer = offers_[next];
    if (offer.host <= host_room) {
      std::vector<uint64_t> left = shortage;
      for (size_t d = 0; d < left.size(); ++d) left[d] -= std::min(left[d], offer.frees[d]);
      taken_.push_back(next);
      if (Try(next + 1, left, host_room - offer.host)) return true;
      taken_.pop_back();
    }
    return Try(next + 1, shortage, host_room);
  }

  bool Suffices(const std::vector<size_t>& taken, const std::vector<uint64_t>& shortage) const {
    for (size_t d = 0; d < shortage.size(); ++d) {
      uint64_t freed = 0;
      for (size_t i : taken) freed += offers_[i].frees[d];
      if (freed < shortage[d]) return false;
    }
    return true;
  }

  const absl::Span<const Offer> offers_;
  std::vector<std::vector<uint64_t>> rest_;  // what all offers from one on free
  std::vector<size_t> taken_;
  int steps_ = 0;
};

}  // namespace

struct GpuArbiter::Job {
  explicit Job(const GpuJobId& job) : id(job) {}

  bool moving() const { return state == GpuJobState::kParking || state == GpuJobState::kResuming; }
  std::string name() const { return absl::StrCat("job ", id.pid); }

  const GpuJobId id;
  DeviceBytes bytes;
  GpuJobState state = GpuJobState::kResident;
  int leases = 0;  // `held` of them LeaseKind::kHeld
  int held = 0;
  bool pinned = false;
  bool gone = false;  // no longer in jobs_
  absl::Time last_used;
  uint64_t use = 0;          // the larger the later
  uint64_t host_charge = 0;  // its part of host_bytes_: all its bytes unless it is resident
};

struct GpuArbiter::Request {
  explicit Request(const LeaseOptions& lease_options) : options(lease_options) {
    absl::Duration time = options.timeout;
    // The wall clock may be set while we wait.
    if (options.deadline != absl::InfiniteFuture()) time = std::min(time, options.deadline - absl::Now());
    limit = time;
  }

  absl::Duration Left() const { return limit - absl::Seconds(since.seconds()); }

  const LeaseOptions& options;
  const Stopwatch since;
  absl::Duration limit;
  JobPtr job;
  std::vector<std::string> devices;  // of the job, when it was last looked at
  bool turn = false;                 // no request that comes before it shares one of them
  bool busy = false;                 // moves something, on its turn
  bool nudged = false;               // something has changed: look anew
  bool cancelled = false;
  bool waited = false;
  bool alive = false;       // looked at since the last wait
  bool swept = false;       // the dead were removed, lately
  bool squeeze = false;     // there seemed to be room and was none: somebody must go
  bool host_short = false;  // host memory would help
  bool host_stuck = false;  // nothing else would
  SteadyClock::time_point reread_at{};
  std::map<JobPtr, absl::Status> failed;  // could not be parked, lately
  DeviceBytes free;
  absl::Status last_error;
  bool resumed = false;
  std::vector<pid_t> parked;
};

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

void GpuArbiter::Charge(Job& job, uint64_t bytes) {
  host_bytes_ = host_bytes_ - job.host_charge + bytes;
  job.host_charge = bytes;
}

void GpuArbiter::Use(Job& job) {
  job.use = ++uses_;
  job.last_used = absl::Now();
}

void GpuArbiter::ChangeBytes(Job& job, DeviceBytes bytes) {
  Nudge(job);
  job.bytes = std::move(bytes);
  Charge(job, job.state == GpuJobState::kResident ? 0 : Total(job.bytes));
  Nudge(job);
}

void GpuArbiter::Remove(const JobPtr& job) {
  job->gone = true;
  job->leases = job->held = 0;
  jobs_.erase(job->id.pid);
  // Until its move has ended it may use host memory.
  if (!job->moving()) Charge(*job, 0);
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

void GpuArbiter::Add(const GpuJobId& id, DeviceBytes bytes, GpuJobState state) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = FindOrMake(id);
  if (!job->moving())
    job->state = state == GpuJobState::kParked ? GpuJobState::kParked : GpuJobState::kResident;
  ChangeBytes(*job, std::move(bytes));
}

void GpuArbiter::Inherit(const GpuJobId& id, int leases, bool pinned) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = FindOrMake(id);
  job->leases += leases;
  job->pinned |= pinned;
}

absl::Status GpuArbiter::SetBytes(const GpuJobId& id, DeviceBytes bytes) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(id.pid, id.start_ticks);
  if (job == nullptr) return absl::OkStatus();
  ChangeBytes(*job, std::move(bytes));
  if (job->state != GpuJobState::kParking || host_bytes_ <= options_.host_budget) return absl::OkStatus();
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
    if (request->host_short || request->job.get() == &job || SharesDevice(request->devices, job.bytes))
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

void GpuArbiter::Wake() {
  absl::MutexLock lock(&mutex_);
  NudgeAll();
}

void GpuArbiter::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  NudgeAll();
}

// ---- leases

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

  absl::Status served;
  if (stopped_ || job.gone) {
    served = CheckWanted(request);
  } else if (job.state != GpuJobState::kResident || AnyoneWaitsFor(job)) {
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
  ++counters_.leases;
  ++job.leases;
  if (options.kind == LeaseKind::kHeld) ++job.held;
  job.pinned |= options.pin;
  Use(job);
  GpuLease lease;
  lease.job = job.id;
  lease.resumed = request.resumed;
  lease.parked = std::move(request.parked);
  lease.seconds = request.since.seconds();
  return lease;
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
    if (request.devices != DevicesOf(job.bytes)) {
      request.devices = DevicesOf(job.bytes);
      Reorder();
    }
    if (!request.turn || job.moving()) {
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
  absl::StatusOr<DeviceBytes> free = moves_.FreeBytes();
  mutex_.Lock();
  if (!free.ok()) {
    ++counters_.failures;
    return Annotate(free.status(),
                    absl::StrCat("can't tell whether there is device memory for ", job.name()));
  }
  AskCancelled(request);
  if (job.state != GpuJobState::kParked || !CheckWanted(request).ok()) return absl::OkStatus();
  request.free = *std::move(free);

  DeviceBytes shortage;
  for (const auto& [uuid, needed] : job.bytes) {
    auto it = request.free.find(uuid);
    if (it == request.free.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(job.name(), " can't go back to ", uuid,
                       ": this machine has no such GPU now; look at `nvidia-smi -L` and the kernel's log"));
    }
    if (it->second < needed) shortage[uuid] = needed - it->second;
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
    Charge(*victim, Total(victim->bytes));
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
  if (!parked.ok() || job->gone) Charge(*job, 0);
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
    mutex_.AwaitWithTimeout(absl::Condition(&request.nudged), left);
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

absl::Status GpuArbiter::Release(pid_t pid, uint64_t start_ticks, LeaseKind kind) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(pid, start_ticks);
  if (job == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job ", pid, " has ended, and its leases with it, or is no CUDA job that is known"));
  }
  if ((kind == LeaseKind::kHeld ? job->held : job->leases - job->held) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        job->name(), job->leases == 0
                         ? " isn't leased: release a lease once"
                         : " has no such lease: those of `rekindle gpu lease --hold` end with that command"));
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

absl::Status GpuArbiter::Park(pid_t pid) {
  absl::MutexLock lock(&mutex_);
  JobPtr job = Find(pid, 0);
  if (job == nullptr) {
    return UnknownJob(pid);
  }
  if (job->state == GpuJobState::kParked) return absl::OkStatus();
  if (job->moving()) return absl::AbortedError(absl::StrCat(job->name(), " is being moved: try again"));
  if (job->leases > 0 || job->pinned) {
    return absl::FailedPreconditionError(
        absl::StrCat(job->name(), " is not parked: it is ",
                     job->pinned ? "pinned; unpin it first (`rekindle gpu release --unpin`)"
                                 : "leased; release it first"));
  }
  const uint64_t bytes = Total(job->bytes);
  if (bytes > HostRoom()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        job->name(), " is not parked: it has ", FormatBytes(bytes), " of device memory. ", DescribeHost()));
  }
  job->state = GpuJobState::kParking;
  Charge(*job, bytes);
  return ParkOne(job);
}

// ---- who makes room

uint64_t GpuArbiter::HostRoom() const {
  return options_.host_budget - std::min(options_.host_budget, host_bytes_);
}

std::vector<GpuArbiter::JobPtr> GpuArbiter::ChooseVictims(const Request& request, const DeviceBytes& shortage,
                                                          uint64_t host_room, Candidates candidates) const {
  std::set<const Job*> wanted;
  for (const Request* other : queue_) wanted.insert(other->job.get());
  std::vector<std::tuple<bool, uint64_t, JobPtr>> jobs;
  for (const auto& [pid, job] : jobs_) {
    if (job == request.job || job->pinned || request.failed.count(job) > 0) continue;
    const bool now = job->state == GpuJobState::kResident && job->leases == 0;
    if (!now && (candidates == Candidates::kNow || job->state == GpuJobState::kParked)) continue;
    const bool helps = std::any_of(shortage.begin(), shortage.end(), [&job = job](const auto& device) {
      return On(device.first, job->bytes) > 0;
    });
    // One that somebody waits for is as good as used.
    if (helps) jobs.emplace_back(wanted.count(job.get()) > 0, job->use, job);
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });

  std::vector<Offer> offers;
  for (const auto& [is_wanted, use, job] : jobs) {
    Offer& offer = offers.emplace_back();
    for (const auto& [uuid, bytes] : shortage) offer.frees.push_back(On(uuid, job->bytes));
    offer.host = Total(job->bytes);
  }
  std::vector<uint64_t> needed;
  for (const auto& [uuid, bytes] : shortage) needed.push_back(bytes);
  std::vector<JobPtr> victims;
  for (size_t i : OfferSearch(offers, needed.size()).Find(needed, host_room))
    victims.push_back(std::get<2>(jobs[i]));
  return victims;
}

absl::Status GpuArbiter::CheckFits(const Job& job) const {
  if (job.state == GpuJobState::kResident) return absl::OkStatus();
  for (const auto& [uuid, needed] : job.bytes) {
    auto it = totals_.find(uuid);
    if (it == totals_.end() || needed <= it->second) continue;
    return absl::ResourceExhaustedError(absl::StrCat(job.name(), " needs ", FormatBytes(needed), " on ", uuid,
                                                     ", which has ", FormatBytes(it->second),
                                                     " in all: it can't ever be resumed there"));
  }
  return absl::OkStatus();
}

absl::Status GpuArbiter::CheckHope(Request& request, const DeviceBytes& shortage) {
  const Job& job = *request.job;
  for (const auto& [uuid, needed] : job.bytes) {
    uint64_t pinned = 0;
    for (const auto& [pid, other] : jobs_) {
      if (other->pinned && other->state == GpuJobState::kResident) pinned += On(uuid, other->bytes);
    }
    auto total = totals_.find(uuid);
    if (total == totals_.end() || pinned == 0 || needed + pinned <= total->second) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(job.name(), " can't be resumed while other jobs are pinned: ", DescribeDevices(request),
                     ". Unpin one of them (`rekindle gpu release JOB --unpin`)"));
  }

  uint64_t parked = 0;
  bool moving = false;
  for (const auto& [pid, other] : jobs_) {
    if (other->state == GpuJobState::kParked) parked += other->host_charge;
    moving |= other->moving();
  }
  const uint64_t room = options_.host_budget - std::min(options_.host_budget, parked);
  const bool any_way = !ChooseVictims(request, shortage, UINT64_MAX, Candidates::kIfReleased).empty();
  request.host_short = !ChooseVictims(request, shortage, UINT64_MAX, Candidates::kNow).empty();
  request.host_stuck = any_way && ChooseVictims(request, shortage, room, Candidates::kIfReleased).empty();
  request.host_short |= request.host_stuck;
  // Whoever is resumed elsewhere gives host memory back.
  if (!request.host_stuck || moving) return absl::OkStatus();
  for (const Request* other : queue_) {
    if (other != &request && other->turn && !other->host_stuck) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      job.name(), " can't be resumed, since who would make room can't be parked. ", DescribeHost()));
}

// ---- what is told

absl::Status GpuArbiter::CheckWanted(const Request& request) const {
  const Job& job = *request.job;
  if (stopped_) {
    return absl::UnavailableError(absl::StrCat("no lease of ", job.name(), ": the daemon is stopping"));
  }
  if (job.gone) return absl::NotFoundError(absl::StrCat("no lease of ", job.name(), ": it has ended"));
  if (request.cancelled) {
    return absl::CancelledError(absl::StrCat("the lease of ", job.name(), " was cancelled while it waited"));
  }
  if (request.Left() > absl::ZeroDuration()) return absl::OkStatus();
  std::string why;
  if (!request.turn) {
    why = DescribeQueue(request);
  } else if (job.moving()) {
    why = "it is being moved";
  } else if (job.state == GpuJobState::kResident) {
    why = "it got onto its GPU too late; ask again";
  } else if (request.free.empty()) {
    why = "it is parked, and to resume it takes time";
  } else {
    why = absl::StrCat(DescribeDevices(request), ". Release or unpin one of them, or wait longer");
    if (request.host_short) absl::StrAppend(&why, ". ", DescribeHost());
  }
  for (const auto& [victim, error] : request.failed)
    absl::StrAppend(&why, "; ", victim->name(), " could not be parked: ", error.message());
  if (!request.last_error.ok())
    absl::StrAppend(&why, "; the last try failed: ", request.last_error.message());
  return absl::DeadlineExceededError(absl::StrCat("no lease of ", job.name(), " within ",
                                                  FormatSeconds(request.since.seconds()), ": ", why));
}

std::string GpuArbiter::DescribeQueue(const Request& request) const {
  std::vector<std::string> earlier;
  for (const Request* other : queue_) {
    if (other == &request) break;
    if (SharesDevice(other->devices, request.job->bytes)) earlier.push_back(other->job->name());
  }
  if (earlier.empty()) return "another request is at work on one of its GPUs";
  return absl::StrCat("requests that came earlier wait for its GPUs: for ", ListSome(earlier));
}

std::string GpuArbiter::DescribeDevices(const Request& request) const {
  std::vector<std::string> devices;
  for (const auto& [uuid, needed] : request.job->bytes) {
    const uint64_t free = On(uuid, request.free);
    std::vector<std::string> holders;
    uint64_t known = free;
    for (const auto& [pid, job] : jobs_) {
      const uint64_t bytes = On(uuid, job->bytes);
      if (bytes == 0 || job->state == GpuJobState::kParked || job == request.job) continue;
      known += bytes;
      std::string holder = absl::StrCat(job->name(), " has ", FormatBytes(bytes));
      if (job->leases > 0)
        absl::StrAppend(&holder, ", leased ", job->leases, job->leases == 1 ? " time" : " times");
      if (job->pinned) absl::StrAppend(&holder, ", pinned");
      if (job->moving()) absl::StrAppend(&holder, ", being moved");
      holders.push_back(std::move(holder));
    }
    auto total = totals_.find(uuid);
    if (total != totals_.end() && total->second > known)
      holders.push_back(absl::StrCat("others have ", FormatBytes(total->second - known)));
    devices.push_back(absl::StrCat(uuid, " has ", FormatBytes(free), " free of the ", FormatBytes(needed),
                                   " that it needs", holders.empty() ? "" : " (",
                                   absl::StrJoin(holders, "; "), holders.empty() ? "" : ")"));
  }
  return absl::StrJoin(devices, "; ");
}

std::string GpuArbiter::DescribeHost() const {
  std::vector<JobPtr> charged;
  for (const auto& [pid, job] : jobs_) {
    if (job->host_charge > 0) charged.push_back(job);
  }
  std::stable_sort(charged.begin(), charged.end(),
                   [](const JobPtr& a, const JobPtr& b) { return a->host_charge > b->host_charge; });
  std::vector<std::string> holders;
  for (const JobPtr& job : charged)
    holders.push_back(absl::StrCat(job->name(), " has ", FormatBytes(job->host_charge)));
  return absl::StrCat("Parked jobs may have ", FormatBytes(options_.host_budget), " of host memory and have ",
                      FormatBytes(host_bytes_), holders.empty() ? "" : ": ", ListSome(holders),
                      ". End one of them, resume it where there is room, or raise the budget");
}

std::vector<GpuJobSnapshot> GpuArbiter::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  std::vector<GpuJobSnapshot> snapshots;
  for (const auto& [pid, job] : jobs_) {
    GpuJobSnapshot& snapshot = snapshots.emplace_back();
    snapshot.id = job->id;
    snapshot.state = job->state;
    snapshot.bytes = job->bytes;
    snapshot.leases = job->leases;
    snapshot.held = job->held;
    snapshot.pinned = job->pinned;
    snapshot.last_used = job->last_used;
    int position = 0;
    for (const Request* request : queue_) {
      if (SharesDevice(request->devices, job->bytes)) ++position;
      if (request->job != job) continue;
      ++snapshot.waiters;
      if (snapshot.position == 0) snapshot.position = std::max(position, 1);
    }
  }
  return snapshots;
}

GpuArbiterCounters GpuArbiter::counters() const {
  absl::MutexLock lock(&mutex_);
  return counters_;
}

uint64_t GpuArbiter::host_bytes() const {
  absl::MutexLock lock(&mutex_);
  return host_bytes_;
}

}  // namespace rekindle::daemon
