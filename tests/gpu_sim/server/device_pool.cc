#include "tests/gpu_sim/server/device_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;
using gpu::cuda::Uuid;

}  // namespace

void DevicePool::AddGpu(const Gpu& gpu) {
  devices_.push_back({.gpu = gpu});
  devices_.back().gpu.used_bytes = 0;
}

std::vector<Gpu> DevicePool::Gpus() const {
  std::vector<Gpu> gpus;
  for (const Device& device : devices_) gpus.push_back(device.gpu);
  return gpus;
}

bool DevicePool::Find(const Uuid& uuid, size_t* device) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].gpu.uuid == uuid) {
      *device = i;
      return true;
    }
  }
  return false;
}

bool DevicePool::Mark(uint32_t Gpu::*mark, const Uuid* uuid) {
  size_t marked = devices_.size();
  if (uuid != nullptr && !Find(*uuid, &marked)) return false;
  for (size_t i = 0; i < devices_.size(); ++i) devices_[i].gpu.*mark = i == marked;
  return true;
}

Result DevicePool::Take(size_t device, uint64_t bytes) {
  Device& taken = devices_[device];
  if (taken.gpu.lost != 0) return gpu::cuda::kUnknown;
  if (bytes > taken.gpu.total_bytes - taken.gpu.used_bytes) return gpu::cuda::kOutOfMemory;
  taken.gpu.used_bytes += bytes;
  taken.max_used_bytes = std::max(taken.max_used_bytes, taken.gpu.used_bytes);
  return gpu::cuda::kSuccess;
}

Result DevicePool::Allocate(int client, pid_t pid, const Uuid& uuid, uint64_t bytes, uint64_t* id,
                            int* descriptor) {
  size_t device;
  if (!Find(uuid, &device)) return gpu::cuda::kInvalidDevice;
  const Result taken = Take(device, bytes);
  if (taken != gpu::cuda::kSuccess) return taken;
  const int memory = memfd_create("gpu-memory", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(bytes)) != 0) {
    if (memory >= 0) close(memory);
    devices_[device].gpu.used_bytes -= bytes;
    return gpu::cuda::kOperatingSystem;
  }
  *id = next_id_++;
  *descriptor = memory;
  allocations_[*id] = {client, pid, device, bytes, memory};
  return gpu::cuda::kSuccess;
}

Result DevicePool::Free(int client, uint64_t id) {
  const auto found = allocations_.find(id);
  if (found == allocations_.end() || found->second.client != client) return gpu::cuda::kInvalidValue;
  devices_[found->second.device].gpu.used_bytes -= found->second.bytes;
  close(found->second.descriptor);
  allocations_.erase(found);
  return gpu::cuda::kSuccess;
}

Result DevicePool::OpenShared(uint64_t id, uint64_t* bytes, Uuid* uuid, int* descriptor) {
  const auto found = allocations_.find(id);
  if (found == allocations_.end()) return gpu::cuda::kInvalidHandle;
  *bytes = found->second.bytes;
  *uuid = devices_[found->second.device].gpu.uuid;
  *descriptor = found->second.descriptor;
  return gpu::cuda::kSuccess;
}

Result DevicePool::UseContext(int client, pid_t pid, const Uuid& uuid) {
  size_t device;
  if (!Find(uuid, &device)) return gpu::cuda::kInvalidDevice;
  if (contexts_.contains({client, device})) return gpu::cuda::kSuccess;
  const Result taken = Take(device, context_bytes_);
  if (taken == gpu::cuda::kSuccess) contexts_[{client, device}] = {pid, context_bytes_};
  return taken;
}

Result DevicePool::DropContext(int client, const Uuid& uuid) {
  size_t device;
  if (!Find(uuid, &device)) return gpu::cuda::kInvalidDevice;
  const auto found = contexts_.find({client, device});
  if (found == contexts_.end()) return gpu::cuda::kInvalidContext;
  devices_[device].gpu.used_bytes -= found->second.bytes;
  contexts_.erase(found);
  return gpu::cuda::kSuccess;
}

void DevicePool::DropClient(int client) {
  for (auto next = allocations_.begin(); next != allocations_.end();) {
    const auto current = next++;
    if (current->second.client == client) Free(client, current->first);
  }
  for (auto next = contexts_.begin(); next != contexts_.end();) {
    const auto current = next++;
    if (current->first.first != client) continue;
    devices_[current->first.second].gpu.used_bytes -= current->second.bytes;
    contexts_.erase(current);
  }
}

bool DevicePool::Reserve(const Uuid& uuid, uint64_t bytes) {
  size_t device;
  if (!Find(uuid, &device)) return false;
  Device& reserved = devices_[device];
  reserved.gpu.used_bytes -= reserved.reserved_bytes;
  reserved.reserved_bytes = 0;
  if (Take(device, bytes) != gpu::cuda::kSuccess) return false;
  reserved.reserved_bytes = bytes;
  return true;
}

std::map<pid_t, uint64_t> DevicePool::BytesByProcess(size_t device) const {
  std::map<pid_t, uint64_t> bytes;
  for (const auto& [id, allocation] : allocations_) {
    if (allocation.device == device) bytes[allocation.pid] += allocation.bytes;
  }
  for (const auto& [key, use] : contexts_) {
    if (key.second == device) bytes[use.pid] += use.bytes;
  }
  return bytes;
}

std::vector<ProcessUse> DevicePool::Processes(const Uuid& uuid) const {
  std::vector<ProcessUse> processes;
  size_t device;
  if (!Find(uuid, &device)) return processes;
  for (const auto& [pid, bytes] : BytesByProcess(device)) processes.push_back({pid, bytes});
  return processes;
}

std::string DevicePool::GpusJson() const {
  std::string json = "[";
  for (const Device& device : devices_) {
    if (json.size() > 1) json += ", ";
    json += "{\"uuid\": \"" + UuidText(device.gpu.uuid) + "\", \"model\": \"" + device.gpu.model +
            "\", \"total\": " + std::to_string(device.gpu.total_bytes) +
            ", \"used\": " + std::to_string(device.gpu.used_bytes) +
            ", \"reserved\": " + std::to_string(device.reserved_bytes) +
            ", \"max_used\": " + std::to_string(device.max_used_bytes) + "}";
  }
  return json + "]";
}

std::string DevicePool::ProcessesJson() const {
  std::map<pid_t, std::map<std::string, uint64_t>> uses;
  for (size_t device = 0; device < devices_.size(); ++device) {
    for (const auto& [pid, bytes] : BytesByProcess(device)) {
      uses[pid][UuidText(devices_[device].gpu.uuid)] = bytes;
    }
  }
  std::string json = "[";
  for (const auto& [pid, gpus] : uses) {
    if (json.size() > 1) json += ", ";
    uint64_t sum = 0;
    std::string parts;
    for (const auto& [uuid, bytes] : gpus) {
      sum += bytes;
      if (!parts.empty()) parts += ", ";
      parts += "\"" + uuid + "\": " + std::to_string(bytes);
    }
    json += "{\"pid\": " + std::to_string(pid) + ", \"bytes\": " + std::to_string(sum) + ", \"gpus\": {" +
            parts + "}}";
  }
  return json + "]";
}

}  // namespace rekindle::gpu_sim
