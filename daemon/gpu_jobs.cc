#include "daemon/gpu_jobs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"
#include "base/status.h"
#include "gpu_state/cuda_abi.h"
#include "gpu_state/pid_namespace.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kLookAgainEvery = absl::Milliseconds(50);
// Who leases a job for each request asks the driver no more often.
constexpr absl::Duration kMeasureEvery = absl::Seconds(1);
// Another daemon's look at the record, and what a fork that holds its lock has to do.
constexpr absl::Duration kLookAtRecordMayTake = absl::Milliseconds(500);
// Of a daemon that takes no calls any more, before the one that has its place gives leases.
constexpr absl::Duration kEndOfOtherMayTake = absl::Seconds(5);
constexpr char kEndedWouldBeThere[] = "a lease or pin would be there that has ended";

// Its PID is another process's here, or nobody's.
bool IsOfOtherNamespace(const GpuJobLeases& job) {
  return job.pid_namespace != 0 && job.pid_namespace != gpu::OwnPidNamespace();
}

GpuArbiterOptions ArbiterOptions(uint64_t host_budget, uint64_t context_bytes) {
  GpuArbiterOptions options;
  options.context_bytes = context_bytes;
  options.host_budget = host_budget;
  return options;
}

// Of a job on its GPUs of which nothing is told, as in a container: what is `known` from earlier, else all
// that is used there and of nobody else who is known. Where it is told on which GPUs it is, of those alone.
void AddHidden(const gpu::DeviceView& view, const std::map<pid_t, GpuJobSnapshot>& known, const GpuJobId& job,
               DeviceBytes* bytes) {
  const DeviceBytes told = *bytes;
  const auto earlier = known.find(job.pid);
  if (earlier != known.end() && earlier->second.id == job) {
    for (const auto& [uuid, had] : earlier->second.bytes) (*bytes)[uuid] = std::max((*bytes)[uuid], had);
  }
  if (absl::c_any_of(*bytes, [](const auto& on_device) { return on_device.second > 0; })) return;
  const DeviceBytes of_named = gpu::BytesByDevice(view.uses);
  for (const gpu::GpuDevice& device : view.devices) {
    if (!told.empty() && !told.contains(device.uuid)) continue;
    uint64_t of_others = 0;
    for (const auto& [pid, other] : known) {
      const auto on_device = other.bytes.find(device.uuid);
      if (pid != job.pid && other.state == GpuJobState::kResident && on_device != other.bytes.end())
        of_others += on_device->second;
    }
    const auto named = of_named.find(device.uuid);
    if (named != of_named.end()) of_others = std::max(of_others, named->second);
    const uint64_t used = device.total_bytes - device.free_bytes;
    if (device.memory_known && used > of_others + gpu::MostOfEmpty(device))
      (*bytes)[device.uuid] = used - of_others;
  }
}

}  // namespace

GpuJobs::GpuJobs(gpu::JobMover* mover, uint64_t host_budget, std::string lease_record)
    : mover_(*mover),
      host_budget_(host_budget),
      arbiter_(this, ArbiterOptions(host_budget, mover->context_bytes())),
      record_(std::move(lease_record)) {}

void GpuJobs::InheritLeases() {
  const Deadline deadline(kLookAtRecordMayTake);
  absl::MutexLock lock(&record_mutex_);
  absl::Status owned = OwnRecord();
  while (absl::IsUnavailable(owned) && !deadline.passed()) {
    absl::SleepFor(kLookAgainEvery);
    owned = OwnRecord();
  }
  if (owned.ok()) return;
  Log(LogLevel::kWarning, absl::StrCat("no leases of GPU jobs are given now: ", owned.message()));
  // Where it is only that nothing can be written, what is leased is to stay where it is.
  if (!absl::IsUnavailable(owned) && !std::exchange(inherited_, true)) Inherit();
}

absl::Status GpuJobs::OwnRecord() {
  const absl::Status taken = record_.Take();
  // Once that one has ended, what it has written is to be read.
  if (absl::IsUnavailable(taken)) inherited_ = false;
  RK_RETURN_IF_ERROR(taken);
  if (!std::exchange(inherited_, true)) Inherit();
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> GpuJobs::OwnRecordInTime(const LeaseOptions& options) {
  const Stopwatch since;
  for (;;) {
    absl::Status owned;
    {
      absl::MutexLock lock(&record_mutex_);
      owned = OwnRecord();
    }
    const absl::Duration waited = absl::Seconds(since.seconds());
    if (owned.ok()) return std::max(options.timeout - waited, absl::ZeroDuration());
    const bool cancelled = options.cancelled && options.cancelled();
    if (!absl::IsUnavailable(owned) || cancelled || waited >= std::min(options.timeout, kEndOfOtherMayTake) ||
        absl::Now() >= options.deadline) {
      absl::MutexLock lock(&mutex_);
      ++(cancelled ? before_queue_.cancelled : before_queue_.refused);
      return owned;
    }
    absl::SleepFor(kLookAgainEvery);
  }
}

absl::Status GpuJobs::CheckNotLeasedElsewhere(pid_t job) {
  absl::StatusOr<std::vector<GpuJobLeases>> jobs;
  {
    absl::MutexLock lock(&record_mutex_);
    if (!record_.IsTakenByOther()) return absl::OkStatus();
    jobs = record_.Read();
  }
  const auto tree = ProcessTree(job);
  for (const GpuJobLeases& kept : jobs.value_or(std::vector<GpuJobLeases>())) {
    if ((kept.leases == 0 && !kept.pinned) || IsOfOtherNamespace(kept) || !IsAlive(kept.job)) continue;
    const pid_t pid = kept.job.pid;
    if (!absl::c_linear_search(tree, pid) && !absl::c_linear_search(ProcessTree(pid), job)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job,
        " is not parked: ", pid == job ? "it" : absl::StrCat("job ", pid, ", of the same process tree,"),
        " is ", kept.pinned ? "pinned" : "leased",
        ", says the record of the daemon whose runtime folder this is: release it there first"));
  }
  return absl::OkStatus();
}

void GpuJobs::Inherit() {
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
  of_other_namespaces_.clear();
  for (const GpuJobLeases& kept : *jobs) {
    if (IsOfOtherNamespace(kept)) {
      // Whether such a job lives its own daemon knows, whose turn comes again.
      const bool gone = gpu::InFirstPidNamespace() && !gpu::AnyoneIsIn(kept.pid_namespace);
      if (!gone) of_other_namespaces_.push_back(kept);
      continue;
    }
    if (!IsAlive(kept.job)) continue;
    const pid_t pid = kept.job.pid;
    const bool used = kept.leases > 0 || kept.pinned;
    // Where the record was another's for a while, some of them are ours.
    int ours = 0;
    const std::map<pid_t, GpuJobSnapshot> known = Known();
    if (auto it = known.find(pid); it != known.end() && it->second.id == kept.job)
      ours = it->second.leases - it->second.held - static_cast<int>(it->second.ids.size());
    const int unnamed = kept.leases - static_cast<int>(kept.ids.size());
    if (used) arbiter_.Inherit(kept.job, std::max(unnamed - ours, 0), kept.pinned, kept.ids);
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
  for (const gpu::LedgerEntry& entry : mover_.ParkedElsewhere()) jobs.insert(entry.job);
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
  mover_.RecallParked(found.parked);
  RK_ASSIGN_OR_RETURN(std::vector<gpu::LedgerEntry> entries, mover_.Parked());
  for (const gpu::LedgerEntry& entry : entries) {
    if (is_parked(entry.pid)) found.uses.insert(found.uses.end(), entry.uses.begin(), entry.uses.end());
  }
  // Whoever made its entry has another runtime folder, or ours was removed; and it is not watched.
  for (pid_t pid : found.parked) {
    if (absl::c_any_of(entries, [pid](const gpu::LedgerEntry& e) { return e.pid == pid && !e.unplaced; }))
      continue;
    found.unknown.push_back(pid);
    const absl::StatusOr<gpu::DeviceView> view = mover_.Devices();
    if (!view.ok()) continue;
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
  DeviceBytes bytes = gpu::BytesByDevice(found.uses);
  if (view.ok()) {
    DeviceBytes totals;
    for (const gpu::GpuDevice& device : view->devices) {
      if (device.memory_known) totals[device.uuid] = device.total_bytes;
    }
    arbiter_.SetDeviceTotals(std::move(totals));
    if (state == GpuJobState::kResident) {
      AddUntold(*view, found.id, &bytes);
      if (!gpu::InFirstPidNamespace() && gpu::KnownBytes(found.uses) == 0)
        AddHidden(*view, Known(), found.id, &bytes);
    }
  }
  const bool anywhere = view.ok() && state == GpuJobState::kParked && !found.unknown.empty();
  if (anywhere) bytes = RoomForUnknown(found, *view);
  {
    absl::MutexLock lock(&mutex_);
    unknown_.erase(found.id.pid);
    if (anywhere) unknown_.insert(found.id.pid);
  }
  arbiter_.Add(found.id, std::move(bytes), state, anywhere);
}

DeviceBytes GpuJobs::RoomForUnknown(const Found& found, const gpu::DeviceView& view) const {
  DeviceBytes bytes;
  for (const auto& [uuid, room] : gpu::RoomFor(found.uses, {}, mover_.context_bytes())) {
    const auto device =
        absl::c_find_if(view.devices, [&u = uuid](const gpu::GpuDevice& d) { return d.uuid == u; });
    const bool has_bound = room.is_guess && device != view.devices.end() && device->memory_known;
    bytes[uuid] =
        has_bound ? std::min(room.bytes, device->total_bytes - gpu::MostOfEmpty(*device)) : room.bytes;
  }
  return bytes;
}

void GpuJobs::AddUntold(const gpu::DeviceView& view, const GpuJobId& job, DeviceBytes* bytes) const {
  const bool all_told = view.unreachable.empty() &&
                        absl::c_all_of(view.devices, [](const gpu::GpuDevice& d) { return d.uses_known; });
  if (all_told) return;
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  const auto earlier = known.find(job.pid);
  if (earlier == known.end() || !(earlier->second.id == job)) return;
  for (const auto& [uuid, had] : earlier->second.bytes) {
    const auto told = absl::c_find_if(
        view.devices, [&u = uuid](const gpu::GpuDevice& d) { return d.uuid == u && d.uses_known; });
    if (told == view.devices.end()) bytes->emplace(uuid, had);
  }
}

absl::StatusOr<GpuMoved> GpuJobs::Park(pid_t job, absl::Duration lock_timeout, const std::string& why) {
  RK_RETURN_IF_ERROR(CheckNotLeasedElsewhere(job));
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
  for (pid_t pid : found.parked) {
    if (!absl::c_linear_search(found.unknown, pid)) record.pids.push_back(pid);
  }
  record.uses = gpu::UsesOf(found.uses, found.parked);
  gpu::DevicePairs pairs;
  if (!wanted.empty() && !found.unknown.empty()) {
    // Whoever names GPUs knows which they were.
    std::erase_if(record.uses,
                  [&found](const gpu::GpuUse& use) { return absl::c_linear_search(found.unknown, use.pid); });
    for (pid_t pid : found.unknown) {
      for (const auto& [from, to] : wanted) record.uses.push_back({pid, from, std::nullopt});
    }
    record.is_told = true;
  }
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
    // Back onto the same ones: the driver sees whether it is those.
    RK_ASSIGN_OR_RETURN(const gpu::DriverInfo info, mover_.Info());
    if (record.is_told && pairs.empty() && info.cuda_version >= gpu::cuda::kFirstVersionWithGpuPairs) {
      for (const gpu::GpuDevice& device : record.devices) pairs.emplace_back(device.uuid, device.uuid);
    }
  }
  RK_RETURN_IF_ERROR(mover_.PutOn(job, found.parked, record, pairs, nullptr, nullptr, cancelled));
  mover_.ForgetRunning(found.pids);
  Log(LogLevel::kInfo, absl::StrCat("job ", job, " has its GPU memory again"));
  return GpuMoved{gpu::KnownBytes(record.uses), true};
}

void GpuJobs::Follow(pid_t job, const gpu::DevicePairs& pairs) {
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  const auto it = known.find(job);
  if (it == known.end() || pairs.empty()) return;
  DeviceBytes bytes;
  for (const auto& [uuid, had] : it->second.bytes) {
    const auto pair = absl::c_find_if(pairs, [&u = uuid](const auto& one) { return one.first == u; });
    bytes[pair == pairs.end() ? uuid : pair->second] += had;
  }
  arbiter_.Add(it->second.id, std::move(bytes), GpuJobState::kParked, /*anywhere=*/false);
}

absl::StatusOr<GpuMoved> GpuJobs::Resume(pid_t job, const gpu::DevicePairs& wanted,
                                         const std::function<bool()>& cancelled) {
  RK_ASSIGN_OR_RETURN(GpuMoved moved, PutOn(job, wanted, cancelled));
  if (moved.moved) Follow(job, wanted);
  // It may be parked again for others, and may be elsewhere now.
  if (moved.moved || Known().count(job) > 0) {
    if (auto now = FindAtRest(job); now.ok()) Tell(*now);
    RememberUse();
  }
  return moved;
}

bool GpuJobs::FitsNow(pid_t job) {
  absl::StatusOr<Found> found = Find(job);
  absl::StatusOr<FreeDeviceMemory> free = FreeMemory();
  if (!found.ok() || !free.ok()) return false;
  const DeviceBytes needed = gpu::BytesByDevice(gpu::UsesOf(found->uses, found->parked));
  return !needed.empty() && absl::c_all_of(needed, [&free](const auto& device) {
    auto has = free->bytes.find(device.first);
    return has != free->bytes.end() && has->second >= device.second;
  });
}

absl::StatusOr<GpuGrant> GpuJobs::Lease(pid_t job, const LeaseOptions& options) {
  // Pinned where a pin that can't be recorded is taken back, and nobody else's with it.
  LeaseOptions unpinned = options;
  unpinned.pin = false;
  RK_ASSIGN_OR_RETURN(unpinned.timeout, OwnRecordInTime(options));
  RK_ASSIGN_OR_RETURN(unpinned.timeout, LearnInTime(job, unpinned));
  // Before anybody is parked for it.
  if (absl::Status driver = mover_.CheckDriver(KnownUsers(job)); !driver.ok()) {
    absl::MutexLock lock(&mutex_);
    ++before_queue_.refused;
    return driver;
  }
  absl::StatusOr<GpuLease> lease = arbiter_.Lease(job, unpinned);
  if (!lease.ok()) return WithHintAtUnknown(job, lease.status());
  GpuGrant grant{lease->job, options.kind, options.id};
  RK_RETURN_IF_ERROR(
      Annotate(Remember(options, &grant),
               absl::StrCat("no lease of job ", job, ", since a restart of the daemon would forget it; ",
                            "see to it that its record can be written")));
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  if (auto it = known.find(job); it != known.end()) {
    for (const auto& [uuid, of_device] : it->second.bytes) grant.bytes += of_device;
  }
  return grant;
}

void GpuJobs::Confirm(const GpuGrant& grant) {
  if (!grant.id.empty()) arbiter_.Confirm(grant.job, grant.id);
  if (grant.pin == 0) return;
  absl::MutexLock lock(&record_mutex_);
  // Whoever else takes a pin back finds that somebody wants it; where it was ended meanwhile, it stays so.
  auto pins = unconfirmed_pins_.find(grant.job.pid);
  if (pins != unconfirmed_pins_.end() && pins->second.count(grant.pin) > 0) unconfirmed_pins_.erase(pins);
}

void GpuJobs::TakeBack(const GpuGrant& grant) {
  absl::MutexLock lock(&record_mutex_);
  UndoPin(grant);
  // It may have ended with its job.
  (void)arbiter_.TakeBack(grant.job, grant.kind, grant.id);
  if (!absl::IsUnavailable(OwnRecord())) WriteRecordOrWarn(kEndedWouldBeThere);
}

void GpuJobs::Pin(GpuGrant* grant) {
  const pid_t pid = grant->job.pid;
  const std::map<pid_t, GpuJobSnapshot> known = Known();
  const auto it = known.find(pid);
  if (it == known.end() || !(it->second.id == grant->job)) return;
  const bool was_pinned = it->second.pinned;
  // Another job with this PID had these.
  if (!was_pinned) unconfirmed_pins_.erase(pid);
  if (was_pinned && unconfirmed_pins_.count(pid) == 0) return;
  if (!arbiter_.Pin(pid, true).ok()) return;
  grant->pin = ++pins_;
  unconfirmed_pins_[pid].insert(grant->pin);
}

void GpuJobs::UndoPin(const GpuGrant& grant) {
  auto pins = unconfirmed_pins_.find(grant.job.pid);
  if (grant.pin == 0 || pins == unconfirmed_pins_.end() || pins->second.erase(grant.pin) == 0 ||
      !pins->second.empty())
    return;
  unconfirmed_pins_.erase(pins);
  // The job may have ended.
  (void)arbiter_.Pin(grant.job.pid, false);
}

absl::Status GpuJobs::CheckDriver(pid_t job) { return mover_.CheckDriver(ProcessTree(job)); }

absl::Status GpuJobs::WithHintAtUnknown(pid_t job, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  const bool for_room = absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
  if (!for_room || unknown_.count(job) == 0) return status;
  return WithMessage(status,
                     absl::StrCat(status.message(),
                                  "; on which GPU it was is not known, so each needs room: if you know it, "
                                  "`rekindle gpu resume ",
                                  job,
                                  " --gpu-map OLD=OLD` (or OLD=OTHER) needs "
                                  "room there alone"));
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

absl::Status GpuJobs::Remember(const LeaseOptions& options, GpuGrant* grant) {
  // What ends with this process needs no file.
  if (options.kind == LeaseKind::kHeld && !options.pin) {
    RememberUse();
    return absl::OkStatus();
  }
  absl::MutexLock lock(&record_mutex_);
  // Where the job has ended meanwhile, whoever has the lease learns that as after any other.
  if (options.pin) Pin(grant);
  absl::Status written = WriteRecord();
  if (written.ok()) return written;
  UndoPin(*grant);
  (void)arbiter_.TakeBack(grant->job, options.kind, options.id);
  return written;
}

absl::Status GpuJobs::WriteRecord() {
  RK_RETURN_IF_ERROR(record_.Take());
  std::vector<GpuJobLeases> jobs = of_other_namespaces_;
  // Those without a lease too, in the order of their use: it says who makes room first.
  std::vector<GpuJobSnapshot> known = arbiter_.Snapshot();
  absl::c_stable_sort(known, [](const auto& a, const auto& b) { return a.use < b.use; });
  for (const GpuJobSnapshot& job : known)
    jobs.push_back({job.id, job.leases - job.held, job.pinned, job.ids, gpu::OwnPidNamespace()});
  return record_.Write(jobs);
}

void GpuJobs::WriteRecordOrWarn(const char* lost) {
  if (absl::Status written = WriteRecord(); !written.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("after a restart of the daemon ", lost, ": ", written.message()));
  }
}

void GpuJobs::RememberUse() {
  absl::MutexLock lock(&record_mutex_);
  if (!inherited_ || absl::IsUnavailable(OwnRecord())) return;
  WriteRecordOrWarn("jobs would not make room that do now");
}

absl::StatusOr<int> GpuJobs::Release(pid_t job, LeaseKind kind, const std::string& id) {
  if (kind == LeaseKind::kLasting) {
    absl::MutexLock lock(&record_mutex_);
    if (absl::Status owned = OwnRecord(); absl::IsUnavailable(owned)) return owned;
  }
  RK_RETURN_IF_ERROR(arbiter_.Release(job, 0, kind, id));
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
  if (absl::Status owned = OwnRecord(); absl::IsUnavailable(owned)) return owned;
  RK_RETURN_IF_ERROR(arbiter_.Pin(job, false));
  unconfirmed_pins_.erase(job);
  WriteRecordOrWarn(kEndedWouldBeThere);
  return LeasesOf(job);
}

GpuArbiterCounters GpuJobs::counters() const {
  GpuArbiterCounters counters = arbiter_.counters();
  absl::MutexLock lock(&mutex_);
  counters.timeouts += before_queue_.timeouts;
  counters.cancelled += before_queue_.cancelled;
  counters.refused += before_queue_.refused;
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
  if (auto view = mover_.Devices(); view.ok()) {
    const std::vector<gpu::GpuUse> uses = gpu::UsesOf(view->uses, pids);
    DeviceBytes bytes = gpu::BytesByDevice(uses);
    AddUntold(*view, job, &bytes);
    if (!gpu::InFirstPidNamespace() && gpu::KnownBytes(uses) == 0) AddHidden(*view, Known(), job, &bytes);
    RK_RETURN_IF_ERROR(arbiter_.SetBytes(job, std::move(bytes)));
  }
  RK_ASSIGN_OR_RETURN(auto held, mover_.TakeOut(job.pid, pids, options.lock_timeout));
  RK_RETURN_IF_ERROR(held->Park(options.why));
  // What it had may have come to light by its leaving. Where that is too much for the budget, it is there
  // now.
  std::vector<gpu::GpuUse> had;
  for (const gpu::LedgerEntry& entry : mover_.Parked().value_or(std::vector<gpu::LedgerEntry>())) {
    if (absl::c_linear_search(pids, entry.pid)) had.insert(had.end(), entry.uses.begin(), entry.uses.end());
  }
  if (gpu::KnownBytes(had) > 0) arbiter_.SetBytes(job, gpu::BytesByDevice(had)).IgnoreError();
  Log(LogLevel::kInfo, absl::StrCat("job ", job.pid, " is parked"));
  return absl::OkStatus();
}

absl::Status GpuJobs::Resume(const GpuJobId& job) { return PutOn(job.pid, gpu::DevicePairs()).status(); }

absl::StatusOr<FreeDeviceMemory> GpuJobs::FreeMemory() {
  RK_ASSIGN_OR_RETURN(gpu::DeviceView view, mover_.DevicesWithKeptRoom());
  FreeDeviceMemory free;
  for (const gpu::GpuDevice& device : view.devices) {
    if (device.lost) {
      free.unknown[device.uuid] = gpu::DoesNotAnswer(device);
    } else if (!device.memory_known) {
      free.unknown[device.uuid] = absl::OkStatus();
    } else {
      free.bytes[device.uuid] = device.free_bytes;
    }
  }
  return free;
}

std::map<pid_t, DeviceBytes> GpuJobs::BytesOf(const std::vector<GpuJobId>& jobs) {
  std::map<pid_t, DeviceBytes> bytes;
  auto view = mover_.DevicesWithKeptRoom();
  if (!view.ok()) return bytes;
  const ProcessChildren all;
  for (const GpuJobId& job : jobs) {
    const std::vector<gpu::GpuUse> uses = gpu::UsesOf(view->uses, all.Tree(job.pid));
    // Where the driver does not tell, what is known from earlier is better than nothing.
    if (gpu::KnownBytes(uses) == 0) continue;
    bytes[job.pid] = gpu::BytesByDevice(uses);
    AddUntold(*view, job, &bytes[job.pid]);
  }
  return bytes;
}

bool GpuJobs::IsAlive(const GpuJobId& job) {
  auto stat = ReadProcessStat(job.pid);
  // What can't be looked at is not gone for that.
  if (!stat.ok()) return !absl::IsNotFound(stat.status());
  return IsSameStart(stat->start_ticks, job.start_ticks) && !stat->ending();
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
