#include "daemon/gpu_jobs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kLookAgainEvery = absl::Milliseconds(50);
// Who leases a job for each request asks the driver no more often.
constexpr absl::Duration kMeasureEvery = absl::Seconds(1);
constexpr char kEndedWouldBeThere[] = "a lease or pin would be there that has ended";

GpuArbiterOptions ArbiterOptions(uint64_t host_budget, uint64_t context_bytes) {
  GpuArbiterOptions options;
  options.context_bytes = context_bytes;
  options.host_budget = host_budget;
  return options;
}

}  // namespace

GpuJobs::GpuJobs(gpu::JobMover* mover, uint64_t host_budget, std::string lease_record)
    : mover_(*mover),
      host_budget_(host_budget),
      arbiter_(this, ArbiterOptions(host_budget, mover->context_bytes())),
      record_(std::move(lease_record)) {}

void GpuJobs::InheritLeases() {
  absl::MutexLock lock(&record_mutex_);
  inherited_ = true;
  absl::StatusOr<std::vector<GpuJobLeases>> jobs = record_.Read();
  if (!jobs.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat(
            "leases and pins of GPU jobs from before this start are lost, jobs that others still use "
            "may be parked: ",
            jobs.status().message()));
    // The next lease would overwrite it.
    const absl::StatusOr<std::string> aside = record_.SetAside();
    Log(LogLevel::kWarning, aside.ok() ? absl::StrCat("the record of those leases is ", *aside, " now")
                                       : std::string(aside.status().message()));
    return;
  }
  for (const GpuJobLeases& kept : *jobs) {
    if (!IsAlive(kept.job)) continue;
    const pid_t pid = kept.job.pid;
    const bool used = kept.leases > 0 || kept.pinned;
    if (used) arbiter_.Inherit(kept.job, kept.leases, kept.pinned);
    absl::StatusOr<Found> found = Find(pid);
    if (!found.ok()) {
      if (!used) continue;
      // The next lease of it looks again.
      Log(LogLevel::kWarning,
          absl::StrCat("job ", pid, " is leased or pinned, but how much of which GPU it has ",
                       "is not known: ", found.status().message()));
      continue;
    }
    Tell(*found);
    if (!used) continue;
    Log(LogLevel::kInfo, absl::StrCat("job ", pid, " has ", kept.leases, " leases from before this start",
                                      kept.pinned ? " and is pinned" : ""));
    if (found->parked.empty()) continue;
    // A lease is recorded once its job is on the GPU, so its holder has been told and will release it: it
    // stays. But whoever parked the job while no daemon ran meant it, so it isn't resumed unasked.
    Log(LogLevel::kWarning, absl::StrCat("job ", pid, " is leased or pinned, but parked: its next lease or ",
                                         "`rekindle gpu resume ", pid, "` brings it back"));
  }
  InheritParked();
}

void GpuJobs::InheritParked() {
  auto entries = mover_.Parked();
  std::set<pid_t> jobs;
  for (const gpu::LedgerEntry& entry : entries.value_or(std::vector<gpu::LedgerEntry>()))
    jobs.insert(entry.job);
  for (const auto& [known, job] : Known()) jobs.erase(known);
  for (pid_t job : jobs) {
    if (absl::StatusOr<Found> found = Find(job); found.ok()) {
      Tell(*found);
    } else {
      Log(LogLevel::kWarning,
          absl::StrCat("job ", job, " is parked, and counts for nothing in the budget of ",
                       "host memory until it is used: ", found.status().message()));
    }
  }
}

absl::StatusOr<GpuJobs::Found> GpuJobs::Find(pid_t job) {
  Found found;
  RK_ASSIGN_OR_RETURN(ProcessStat stat, ReadProcessStat(job));
  found.id = {job, stat.start_ticks};
  RK_ASSIGN_OR_RETURN(found.pids, mover_.Users(ProcessTree(job)));
  if (found.pids.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", job, " and its children use no CUDA: they have nothing on a GPU"));
  }
  {
    absl::MutexLock lock(&mutex_);
    users_[job] = found.pids;
  }
  auto states = mover_.States(found.pids);
  for (size_t i = 0; i < states.size(); ++i) {
    if (!states[i].ok()) return states[i].status();
    if (*states[i] != gpu::ProcessState::kRunning) found.parked.push_back(found.pids[i]);
  }
  auto is_parked = [&found](pid_t pid) { return absl::c_linear_search(found.parked, pid); };
  RK_ASSIGN_OR_RETURN(std::vector<gpu::LedgerEntry> entries, mover_.Parked());
  for (const gpu::LedgerEntry& entry : entries) {
    if (is_parked(entry.pid)) found.uses.insert(found.uses.end(), entry.uses.begin(), entry.uses.end());
  }
  // Whoever made its entry has another runtime folder, or ours was removed.
  for (pid_t pid : found.parked) {
    if (absl::c_any_of(entries, [pid](const gpu::LedgerEntry& entry) { return entry.pid == pid; })) continue;
    const absl::StatusOr<gpu::DeviceView> view = mover_.Devices();
    if (!view.ok()) break;
    const std::vector<gpu::GpuUse> unknown = gpu::UnknownUses(pid, view->devices);
    found.uses.insert(found.uses.end(), unknown.begin(), unknown.end());
  }
  // Without the management library nothing is known; the driver then has the last word.
  auto running = mover_.UsesOf(found.pids);
  for (const gpu::GpuUse& use : running.value_or(std::vector<gpu::GpuUse>())) {
    if (!is_parked(use.pid)) found.uses.push_back(use);
  }
  return found;
}

absl::Status GpuJobs::CheckAtRest(const std::vector<pid_t>& pids) {
  const std::vector<pid_t> moved = mover_.BeingMoved(pids);
  if (moved.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("process ", moved[0],
                                         ": its GPU memory is being moved just now, or an image of it is ",
                                         "being taken; try again when that has ended"));
}

absl::StatusOr<GpuJobs::Found> GpuJobs::FindAtRest(pid_t job) {
  // Before: what has ended meanwhile. After: what has begun.
  RK_RETURN_IF_ERROR(CheckAtRest(ProcessTree(job)));
  RK_ASSIGN_OR_RETURN(Found found, Find(job));
  RK_RETURN_IF_ERROR(CheckAtRest(found.pids));
  return found;
}

void GpuJobs::Tell(const Found& found) {
  Tell(found, found.parked.empty() ? GpuJobState::kResident : GpuJobState::kParked);
}

void GpuJobs::Tell(const Found& found, GpuJobState state) {
  auto view = mover_.Devices();
  if (view.ok()) {
    DeviceBytes totals;
    for (const gpu::GpuDevice& device : view->devices) totals[device.uuid] = device.total_bytes;
    arbiter_.SetDeviceTotals(std::move(totals));
  }
  arbiter_.Add(found.id, gpu::BytesByDevice(found.uses), state);
}

absl::StatusOr<GpuMoved> GpuJobs::Park(pid_t job, absl::Duration lock_timeout, const std::string& why) {
  RK_ASSIGN_OR_RETURN(Found found, Find(job));
  // Those whose state an image takes just now are on the host too, but not to stay there.
  RK_RETURN_IF_ERROR(mover_.CheckNotMoving(found.pids));
  if (found.parked.size() == found.pids.size()) return GpuMoved();
  Tell(found, GpuJobState::kResident);
  {
    absl::MutexLock lock(&mutex_);
    asked_[job] = {lock_timeout, why};
  }
  absl::Status parked = arbiter_.Park(job);
  {
    absl::MutexLock lock(&mutex_);
    asked_.erase(job);
  }
  RememberUse();
  RK_RETURN_IF_ERROR(parked);
  // What it had may have come to light by its leaving.
  uint64_t bytes = 0;
  auto entries = mover_.Parked();
  for (const gpu::LedgerEntry& entry : entries.value_or(std::vector<gpu::LedgerEntry>())) {
    const bool ours = absl::c_linear_search(found.pids, entry.pid);
    if (ours && !absl::c_linear_search(found.parked, entry.pid)) bytes += gpu::KnownBytes(entry.uses);
  }
  return GpuMoved{bytes, true};
}

absl::StatusOr<GpuMoved> GpuJobs::PutOn(pid_t job, const gpu::DevicePairs& wanted,
                                        const std::function<bool()>& cancelled) {
  RK_ASSIGN_OR_RETURN(Found found, Find(job));
  if (found.parked.empty()) {
    mover_.ForgetRunning(found.pids);
    return GpuMoved();
  }
  gpu::GpuRecord record;
  record.pids = found.parked;
  record.uses = gpu::UsesOf(found.uses, found.parked);
  gpu::DevicePairs pairs;
  if (!wanted.empty()) {
    RK_ASSIGN_OR_RETURN(gpu::DeviceView view, mover_.Devices());
    const std::map<std::string, uint64_t> had = gpu::BytesByDevice(record.uses);
    for (const auto& [uuid, bytes] : had) {
      auto there = absl::c_find_if(view.devices,
                                   [u = uuid](const gpu::GpuDevice& device) { return device.uuid == u; });
      gpu::GpuDevice gone;
      gone.uuid = uuid;
      record.devices.push_back(there == view.devices.end() ? gone : *there);
    }
    RK_ASSIGN_OR_RETURN(pairs, mover_.PlanRestore(record, wanted, false));
  }
  RK_RETURN_IF_ERROR(mover_.PutOn(job, found.parked, record, pairs, nullptr, nullptr, cancelled));
  mover_.ForgetRunning(found.pids);
  Log(LogLevel::kInfo, absl::StrCat("job ", job, " has its GPU memory again"));
  return GpuMoved{gpu::KnownBytes(record.uses), true};
}

absl::StatusOr<GpuMoved> GpuJobs::Resume(pid_t job, const gpu::DevicePairs& wanted,
                                         const std::function<bool()>& cancelled) {
  RK_ASSIGN_OR_RETURN(GpuMoved moved, PutOn(job, wanted, cancelled));
  // It may be parked again for others, and may be elsewhere now.
  if (moved.moved || Known().count(job) > 0) {
    if (auto now = FindAtRest(job); now.ok()) Tell(*now);
    RememberUse();
  }
  return moved;
}

bool GpuJobs::FitsNow(pid_t job) {
  absl::StatusOr<Found> found = Find(job);
  absl::StatusOr<DeviceBytes> free = FreeBytes();
  if (!found.ok() || !free.ok()) return false;
  const DeviceBytes needed = gpu::BytesByDevice(gpu::UsesOf(found->uses, found->parked));
  return !needed.empty() && absl::c_all_of(needed, [&free](const auto& device) {
    auto has = free->find(device.first);
    return has != free->end() && has->second >= device.second;
  });
}

absl::StatusOr<uint64_t> GpuJobs::Lease(pid_t job, const LeaseOptions& options) {
  // Pinned where a pin that can't be recorded is taken back, and nobody else's with it.
  LeaseOptions unpinned = options;
  unpinned.pin = false;
  RK_ASSIGN_OR_RETURN(unpinned.timeout, LearnInTime(job, options));
  RK_ASSIGN_OR_RETURN(GpuLease lease, arbiter_.Lease(job, unpinned));
  RK_RETURN_IF_ERROR(
      Annotate(Remember(lease.job, options),
               absl::StrCat("no lease of job ", job, ", since a restart of the daemon would forget it; ",
                            "see to it that its record can be written")));
  uint64_t bytes = 0;
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  if (auto it = known.find(job); it != known.end()) {
    for (const auto& [uuid, of_device] : it->second.bytes) bytes += of_device;
  }
  return bytes;
}

absl::StatusOr<absl::Duration> GpuJobs::LearnInTime(pid_t job, const LeaseOptions& options) {
  const Stopwatch since;
  for (;;) {
    const absl::Status learned = Learn(job);
    const absl::Duration left = options.timeout - absl::Seconds(since.seconds());
    if (learned.ok()) return std::max(left, absl::ZeroDuration());
    if (!absl::IsAborted(learned)) return learned;
    const bool cancelled = options.cancelled && options.cancelled();
    const bool late = left <= absl::ZeroDuration() || absl::Now() >= options.deadline;
    if (cancelled || late) {
      absl::MutexLock lock(&mutex_);
      ++(cancelled ? before_queue_.cancelled : before_queue_.timeouts);
    }
    if (cancelled)
      return absl::CancelledError(absl::StrCat("the lease of job ", job, " was cancelled while it waited"));
    if (late) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no lease of job ", job, " within ", FormatSeconds(since.seconds()), ": ", learned.message()));
    }
    absl::SleepFor(std::min(left, kLookAgainEvery));
  }
}

absl::Status GpuJobs::Learn(pid_t job) {
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  const auto it = known.find(job);
  const bool moving = it != known.end() && (it->second.state == GpuJobState::kParking ||
                                            it->second.state == GpuJobState::kResuming);
  // The arbiter is at it: there is its place in the queue.
  if (moving && IsAlive(it->second.id)) return absl::OkStatus();
  RK_RETURN_IF_ERROR(CheckAtRest(KnownUsers(job)));
  if (IsAsKnown(job)) {
    if (it->second.state == GpuJobState::kResident) MeasureNowAndThen(it->second.id);
    return absl::OkStatus();
  }
  RK_ASSIGN_OR_RETURN(Found found, FindAtRest(job));
  Tell(found);
  return absl::OkStatus();
}

void GpuJobs::MeasureNowAndThen(const GpuJobId& job) {
  {
    absl::MutexLock lock(&mutex_);
    const auto now = SteadyClock::now();
    std::erase_if(measured_, [now](const auto& job_and_when) {
      return now - job_and_when.second >= absl::ToChronoNanoseconds(kMeasureEvery);
    });
    if (!measured_.emplace(job.pid, now).second) return;
  }
  const std::map<pid_t, DeviceBytes> now = BytesOf({job});
  // Too much for the budget of host memory is said when it is to be parked.
  if (auto it = now.find(job.pid); it != now.end()) arbiter_.SetBytes(job, it->second).IgnoreError();
}

bool GpuJobs::IsAsKnown(pid_t job) {
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  auto it = known.find(job);
  if (it == known.end() || !IsAlive(it->second.id)) return false;
  const std::vector<pid_t> pids = KnownUsers(job);
  if (pids.empty()) return false;
  const GpuJobState state = it->second.state;
  if (state != GpuJobState::kResident && state != GpuJobState::kParked) return true;  // the arbiter is at it
  const gpu::ProcessState wanted =
      state == GpuJobState::kResident ? gpu::ProcessState::kRunning : gpu::ProcessState::kCheckpointed;
  for (const absl::StatusOr<gpu::ProcessState>& is : mover_.States(pids)) {
    if (!is.ok() || *is != wanted) return false;
  }
  return true;
}

std::vector<pid_t> GpuJobs::KnownUsers(pid_t job) {
  absl::MutexLock lock(&mutex_);
  auto users = users_.find(job);
  return users == users_.end() ? std::vector<pid_t>() : users->second;
}

absl::Status GpuJobs::Remember(const GpuJobId& job, const LeaseOptions& options) {
  // What ends with this process needs no file.
  if (options.kind == LeaseKind::kHeld && !options.pin) {
    RememberUse();
    return absl::OkStatus();
  }
  absl::MutexLock lock(&record_mutex_);
  bool was_pinned = true;
  if (options.pin) {
    const std::map<pid_t, GpuJobSnapshot> known = Known();
    auto it = known.find(job.pid);
    was_pinned = it != known.end() && it->second.pinned;
    // It has ended meanwhile; whoever has the lease learns that as after any other.
    if (!arbiter_.Pin(job.pid, true).ok()) return absl::OkStatus();
  }
  absl::Status written = WriteRecord();
  if (written.ok()) return written;
  if (!was_pinned) (void)arbiter_.Pin(job.pid, false);
  (void)arbiter_.Release(job.pid, job.start_ticks, options.kind);
  return written;
}

absl::Status GpuJobs::WriteRecord() {
  std::vector<GpuJobLeases> jobs;
  // Those without a lease too, in the order of their use: it says who makes room first.
  std::vector<GpuJobSnapshot> known = arbiter_.Snapshot();
  absl::c_stable_sort(known, [](const auto& a, const auto& b) { return a.last_used < b.last_used; });
  for (const GpuJobSnapshot& job : known) jobs.push_back({job.id, job.leases - job.held, job.pinned});
  return record_.Write(jobs);
}

void GpuJobs::WriteRecordOrWarn(const char* lost) {
  if (absl::Status written = WriteRecord(); !written.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("after a restart of the daemon ", lost, ": ", written.message()));
  }
}

void GpuJobs::RememberUse() {
  absl::MutexLock lock(&record_mutex_);
  if (inherited_) WriteRecordOrWarn("jobs would not make room that do now");
}

absl::StatusOr<int> GpuJobs::Release(pid_t job, LeaseKind kind) {
  RK_RETURN_IF_ERROR(arbiter_.Release(job, 0, kind));
  if (kind == LeaseKind::kLasting) {
    absl::MutexLock lock(&record_mutex_);
    WriteRecordOrWarn(kEndedWouldBeThere);
  } else {
    RememberUse();
  }
  return LeasesOf(job);
}

absl::StatusOr<int> GpuJobs::Unpin(pid_t job) {
  absl::MutexLock lock(&record_mutex_);
  RK_RETURN_IF_ERROR(arbiter_.Pin(job, false));
  WriteRecordOrWarn(kEndedWouldBeThere);
  return LeasesOf(job);
}

GpuArbiterCounters GpuJobs::counters() const {
  GpuArbiterCounters counters = arbiter_.counters();
  absl::MutexLock lock(&mutex_);
  counters.timeouts += before_queue_.timeouts;
  counters.cancelled += before_queue_.cancelled;
  return counters;
}

int GpuJobs::LeasesOf(pid_t job) const {
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  auto it = known.find(job);
  return it == known.end() ? 0 : it->second.leases;
}

std::map<pid_t, GpuJobSnapshot> GpuJobs::Known() const {
  std::map<pid_t, GpuJobSnapshot> known;
  for (GpuJobSnapshot& job : arbiter_.Snapshot()) known.emplace(job.id.pid, std::move(job));
  return known;
}

absl::Status GpuJobs::Park(const GpuJobId& job) {
  ParkOptions options;
  {
    absl::MutexLock lock(&mutex_);
    if (auto asked = asked_.find(job.pid); asked != asked_.end()) options = asked->second;
  }
  RK_ASSIGN_OR_RETURN(std::vector<pid_t> pids, mover_.Users(ProcessTree(job.pid)));
  // It may have grown since it was found.
  if (auto uses = mover_.UsesOf(pids); uses.ok()) {
    RK_RETURN_IF_ERROR(arbiter_.SetBytes(job, gpu::BytesByDevice(*uses)));
  }
  RK_ASSIGN_OR_RETURN(auto held, mover_.TakeOut(job.pid, pids, options.lock_timeout));
  RK_RETURN_IF_ERROR(held->Park(options.why));
  Log(LogLevel::kInfo, absl::StrCat("job ", job.pid, " is parked"));
  return absl::OkStatus();
}

absl::Status GpuJobs::Resume(const GpuJobId& job) { return PutOn(job.pid, gpu::DevicePairs()).status(); }

absl::StatusOr<DeviceBytes> GpuJobs::FreeBytes() {
  RK_ASSIGN_OR_RETURN(gpu::DeviceView view, mover_.DevicesWithKeptRoom());
  DeviceBytes bytes;
  for (const gpu::GpuDevice& device : view.devices) bytes[device.uuid] = device.free_bytes;
  return bytes;
}

std::map<pid_t, DeviceBytes> GpuJobs::BytesOf(const std::vector<GpuJobId>& jobs) {
  std::map<pid_t, DeviceBytes> bytes;
  auto view = mover_.DevicesWithKeptRoom();
  if (!view.ok()) return bytes;
  const ProcessChildren all;
  for (const GpuJobId& job : jobs) {
    const std::vector<gpu::GpuUse> uses = gpu::UsesOf(view->uses, all.Tree(job.pid));
    // Where the driver does not tell, what is known from earlier is better than nothing.
    if (gpu::KnownBytes(uses) > 0) bytes[job.pid] = gpu::BytesByDevice(uses);
  }
  return bytes;
}

bool GpuJobs::IsAlive(const GpuJobId& job) {
  auto stat = ReadProcessStat(job.pid);
  // What can't be looked at is not gone for that.
  if (!stat.ok()) return !absl::IsNotFound(stat.status());
  return stat->start_ticks == job.start_ticks && !stat->ending();
}

std::map<pid_t, std::vector<pid_t>> GpuJobs::AncestorsOf(const std::vector<GpuJobId>& jobs) {
  std::map<pid_t, std::vector<pid_t>> ancestors;
  for (const GpuJobId& job : jobs) {
    std::vector<pid_t>& of_job = ancestors[job.pid];
    for (pid_t pid = job.pid; pid != 0;) {
      const auto stat = ReadProcessStat(pid);
      pid = stat.ok() ? stat->parent : 0;
      // A PID may have gone to another process between two looks.
      if (pid == job.pid || absl::c_linear_search(of_job, pid)) break;
      if (pid != 0) of_job.push_back(pid);
    }
  }
  return ancestors;
}

}  // namespace rekindle::daemon
