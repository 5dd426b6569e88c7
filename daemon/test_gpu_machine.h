// GPUs and processes of a test's own, for those who move jobs through GpuMoves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/gpu_arbiter.h"

namespace rekindle::daemon {

// Contents that are really moved, memory that is really counted, and a list of what should never have been
// asked for. Thread-safe.
class TestMachine : public GpuMoves {
 public:
  enum class Call { kPark, kResume, kFreeMemory };
  // Called in the middle of every call, without a lock; an error makes the call fail.
  using Interference = std::function<absl::Status(Call, const GpuJobId&)>;

  TestMachine(DeviceBytes totals, uint64_t host_budget) : totals_(std::move(totals)), budget_(host_budget) {}

  void Interfere(Interference interference) {
    absl::MutexLock lock(&mutex_);
    interference_ = std::move(interference);
  }

  static uint64_t Sum(const DeviceBytes& bytes) {
    uint64_t sum = 0;
    for (const auto& [uuid, on_device] : bytes) sum += on_device;
    return sum;
  }

  // A resident one only if there is room.
  bool Start(const GpuJobId& id, const DeviceBytes& bytes, bool resident) {
    absl::MutexLock lock(&mutex_);
    if (resident && !TakeDevices(bytes)) return false;
    if (!resident) host_used_ += Sum(bytes);
    auto process = std::make_shared<Process>();
    process->id = id;
    process->bytes = bytes;
    process->resident = resident;
    (resident ? process->device : process->host) = Content(id);
    processes_[id.pid] = std::move(process);
    return true;
  }

  void Kill(const GpuJobId& id) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    if (process == nullptr) return;
    if (process->resident || process->moving) FreeDevices(process->bytes);
    if (!process->resident || process->moving) host_used_ -= Sum(process->bytes);
    processes_.erase(id.pid);
  }

  // A job on its GPUs has so much from now on.
  void Resize(const GpuJobId& id, const DeviceBytes& bytes) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    FreeDevices(process->bytes);
    process->bytes = bytes;
    if (!TakeDevices(bytes)) Wrong(id, "has grown beyond its GPUs");
  }

  // Memory of processes that the arbiter doesn't know of.
  void SetOutsiders(const std::string& uuid, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    used_[uuid] = used_[uuid] - outsiders_[uuid] + bytes;
    outsiders_[uuid] = bytes;
  }

  // From now on until Unuse the job must be where it is. False if it has died; what is wrong otherwise is
  // noted.
  bool Use(const GpuJobId& id) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    if (process == nullptr) return false;
    ++process->users;
    CheckUsed(*process);
    return true;
  }
  void Unuse(const GpuJobId& id) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    if (process == nullptr) return;
    CheckUsed(*process);
    --process->users;
  }

  absl::Status Park(const GpuJobId& id) override {
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(absl::StrCat("park ", id.pid));
      ProcessPtr process = Find(id);
      if (process == nullptr) return absl::NotFoundError("no such process");
      if (process->moving || !process->resident) Wrong(id, "parked while it is moved or parked");
      if (process->users > 0) Wrong(id, "parked while it is leased");
      process->moving = true;
      host_used_ += Sum(process->bytes);
      if (host_used_ > budget_) Wrong(id, "parked beyond the host budget");
    }
    absl::Status interfered = Interfered(Call::kPark, id);
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    if (process == nullptr) return absl::NotFoundError("the process has died");
    process->moving = false;
    if (!interfered.ok()) {
      host_used_ -= Sum(process->bytes);
      return interfered;
    }
    process->resident = false;
    process->host = std::exchange(process->device, "");
    FreeDevices(process->bytes);
    return absl::OkStatus();
  }

  absl::Status Resume(const GpuJobId& id) override {
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(absl::StrCat("resume ", id.pid));
      ProcessPtr process = Find(id);
      if (process == nullptr) return absl::NotFoundError("no such process");
      if (process->moving || process->resident) Wrong(id, "resumed while it is moved or resident");
      if (!TakeDevices(process->bytes)) {
        ++overfull_;
        return absl::ResourceExhaustedError("out of device memory");
      }
      process->moving = true;
    }
    absl::Status interfered = Interfered(Call::kResume, id);
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    if (process == nullptr) return absl::NotFoundError("the process has died");
    process->moving = false;
    if (!interfered.ok()) {
      FreeDevices(process->bytes);
      return interfered;
    }
    process->resident = true;
    process->device = std::exchange(process->host, "");
    host_used_ -= Sum(process->bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<FreeDeviceMemory> FreeMemory() override {
    absl::Status interfered = Interfered(Call::kFreeMemory, {});
    if (!interfered.ok()) return interfered;
    absl::MutexLock lock(&mutex_);
    FreeDeviceMemory free;
    for (const auto& [uuid, total] : totals_) {
      if (auto unknown = unknown_.find(uuid); unknown != unknown_.end()) {
        free.unknown.insert(*unknown);
      } else {
        free.bytes[uuid] = total - used_[uuid];
      }
    }
    return free;
  }

  std::map<pid_t, DeviceBytes> BytesOf(const std::vector<GpuJobId>& jobs) override {
    absl::MutexLock lock(&mutex_);
    std::map<pid_t, DeviceBytes> bytes;
    for (const GpuJobId& id : jobs) {
      if (ProcessPtr process = Find(id); process != nullptr) bytes[id.pid] = process->bytes;
    }
    return bytes;
  }

  bool IsAlive(const GpuJobId& id) override {
    absl::MutexLock lock(&mutex_);
    return Find(id) != nullptr;
  }

  std::map<pid_t, std::vector<pid_t>> AncestorsOf(const std::vector<GpuJobId>& jobs) override {
    absl::MutexLock lock(&mutex_);
    std::map<pid_t, std::vector<pid_t>> ancestors;
    for (const GpuJobId& id : jobs) {
      if (auto parent = parents_.find(id.pid); parent != parents_.end()) ancestors[id.pid] = {parent->second};
    }
    return ancestors;
  }
  // The process is another one's child.
  void SetParent(pid_t pid, pid_t parent) {
    absl::MutexLock lock(&mutex_);
    parents_[pid] = parent;
  }

  // How much is free on this GPU can't be asked from now on. OK: it works; else why it does not.
  void SetUnknown(const std::string& uuid, const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    unknown_[uuid] = why;
  }

  // The living.
  std::vector<GpuJobId> Jobs() {
    absl::MutexLock lock(&mutex_);
    std::vector<GpuJobId> jobs;
    for (const auto& [pid, process] : processes_) jobs.push_back(process->id);
    return jobs;
  }
  bool IsResident(const GpuJobId& id) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    return process != nullptr && process->resident;
  }
  bool IsIntact(const GpuJobId& id) {
    absl::MutexLock lock(&mutex_);
    ProcessPtr process = Find(id);
    return process != nullptr && !process->moving &&
           (process->resident ? process->device : process->host) == Content(id);
  }
  std::vector<std::string> TakeCalls() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(calls_, {});
  }
  std::vector<std::string> wrongs() {
    absl::MutexLock lock(&mutex_);
    return wrongs_;
  }
  int overfull() {
    absl::MutexLock lock(&mutex_);
    return overfull_;
  }
  uint64_t host_used() {
    absl::MutexLock lock(&mutex_);
    return host_used_;
  }

 private:
  struct Process {
    GpuJobId id;
    DeviceBytes bytes;
    bool resident = false;
    bool moving = false;  // has memory on both sides
    int users = 0;
    std::string device, host;
  };
  using ProcessPtr = std::shared_ptr<Process>;

  static std::string Content(const GpuJobId& id) { return absl::StrCat(id.pid, "/", id.start_ticks); }

  ProcessPtr Find(const GpuJobId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto it = processes_.find(id.pid);
    return it == processes_.end() || !(it->second->id == id) ? nullptr : it->second;
  }
  bool TakeDevices(const DeviceBytes& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [uuid, needed] : bytes) {
      if (used_[uuid] + needed > totals_[uuid]) return false;
    }
    for (const auto& [uuid, needed] : bytes) used_[uuid] += needed;
    return true;
  }
  void FreeDevices(const DeviceBytes& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [uuid, had] : bytes) used_[uuid] -= had;
  }
  void CheckUsed(const Process& process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!process.resident || process.moving) Wrong(process.id, "leased and not resident");
    if (process.device != Content(process.id)) Wrong(process.id, "leased and without its memory");
  }
  void Wrong(const GpuJobId& id, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    wrongs_.push_back(absl::StrCat("job ", id.pid, ": ", what));
  }
  absl::Status Interfered(Call call, const GpuJobId& id) {
    Interference interference;
    {
      absl::MutexLock lock(&mutex_);
      interference = interference_;
    }
    return interference ? interference(call, id) : absl::OkStatus();
  }

  absl::Mutex mutex_;
  DeviceBytes totals_ ABSL_GUARDED_BY(mutex_), used_ ABSL_GUARDED_BY(mutex_),
      outsiders_ ABSL_GUARDED_BY(mutex_);
  const uint64_t budget_;
  uint64_t host_used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, ProcessPtr> processes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> unknown_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, pid_t> parents_ ABSL_GUARDED_BY(mutex_);
  Interference interference_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> wrongs_ ABSL_GUARDED_BY(mutex_);
  int overfull_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::daemon
