#include "tests/gpu_sim/driver/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMostPopulated = 256 << 20;  // the tests' sparse jobs have more than the machine

void* Pointer(DeviceAddress address) { return reinterpret_cast<void*>(address); }

// Shows the memory; the descriptor is closed. A child of the job has no part in it, as on a real device.
void* MapShared(int memory, uint64_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  close(memory);
  if (place == MAP_FAILED) return nullptr;
  madvise(place, bytes, MADV_DONTFORK);
  return place;
}

// Copies what of the memory was ever written; the rest is zero in `to` already, and should cost nothing
// there. The descriptor, or -1, is of the memory that `from` shows; it is closed.
void CopyWritten(char* to, const char* from, uint64_t bytes, int memory) {
  uint64_t end = 0;
  while (memory >= 0 && end < bytes) {
    const off_t data = lseek(memory, static_cast<off_t>(end), SEEK_DATA);
    if (data < 0) break;
    const uint64_t start = static_cast<uint64_t>(data);
    end = std::min(bytes, static_cast<uint64_t>(lseek(memory, data, SEEK_HOLE)));
    std::memcpy(to + start, from + start, end - start);
  }
  if (memory < 0) std::memcpy(to, from, bytes);
  if (memory >= 0) close(memory);
}

void CopyNonZeroPages(char* to, const char* from, uint64_t bytes) {
  static constexpr char kZeros[kPage] = {};
  for (uint64_t offset = 0; offset < bytes; offset += kPage) {
    if (std::memcmp(from + offset, kZeros, kPage) != 0) std::memcpy(to + offset, from + offset, kPage);
  }
}

}  // namespace

Result DeviceMemory::Remember(Allocation allocation, int memory, DeviceAddress* address) {
  void* place = MapShared(memory, allocation.bytes);
  if (place == nullptr) return gpu::cuda::kOutOfMemory;
  *address = reinterpret_cast<DeviceAddress>(place);
  const std::lock_guard lock(mutex_);
  allocations_[*address] = allocation;
  return gpu::cuda::kSuccess;
}

Result DeviceMemory::Allocate(ServerLink* link, const Gpu& gpu, int device, const void* context,
                              MemoryKind kind, uint64_t bytes, DeviceAddress* address) {
  if (bytes == 0) return gpu::cuda::kInvalidValue;
  if (bytes > gpu.total_bytes) return gpu::cuda::kOutOfMemory;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  Allocation allocation{.bytes = bytes, .device = device, .context = context, .kind = kind, .id = 0};
  int memory = -1;
  Result result = link->Allocate(gpu.uuid, bytes, &allocation.id, &memory);
  if (result != gpu::cuda::kSuccess) return result;
  result = Remember(allocation, memory, address);
  if (result != gpu::cuda::kSuccess) link->Free(allocation.id);
  return result;
}

Result DeviceMemory::Export(DeviceAddress address, uint64_t* id) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.kind != MemoryKind::kDevice)
    return gpu::cuda::kInvalidValue;
  found->second.exported = true;
  *id = found->second.id;
  return gpu::cuda::kSuccess;
}

Result DeviceMemory::Import(ServerLink* link, uint64_t id, int device, const void* context,
                            DeviceAddress* address) {
  Allocation allocation{
      .bytes = 0, .device = device, .context = context, .kind = MemoryKind::kImported, .id = id};
  gpu::cuda::Uuid gpu;
  int memory = -1;
  const Result result = link->OpenShared(id, &gpu, &allocation.bytes, &memory);
  return result == gpu::cuda::kSuccess ? Remember(allocation, memory, address) : result;
}

void DeviceMemory::Forget(ServerLink* link, std::map<DeviceAddress, Allocation>::iterator which) {
  const Allocation& allocation = which->second;
  munmap(Pointer(which->first), allocation.bytes);
  if (allocation.saved != nullptr) munmap(allocation.saved, allocation.bytes);
  if (allocation.mapped && allocation.kind != MemoryKind::kImported) link->Free(allocation.id);
  allocations_.erase(which);
}

Result DeviceMemory::Free(ServerLink* link, DeviceAddress address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return gpu::cuda::kInvalidValue;
  Forget(link, found);
  return gpu::cuda::kSuccess;
}

void DeviceMemory::FreeAllOf(ServerLink* link, const void* context) {
  const std::lock_guard lock(mutex_);
  for (auto next = allocations_.begin(); next != allocations_.end();) {
    const auto current = next++;
    if (current->second.context == context) Forget(link, current);
  }
}

bool DeviceMemory::Accessible(DeviceAddress address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return false;
  --after;
  const uint64_t offset = address - after->first;
  return after->second.mapped && offset <= after->second.bytes && bytes <= after->second.bytes - offset;
}

bool DeviceMemory::UsesDevice(int device) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.device == device) return true;
  }
  return false;
}

bool DeviceMemory::HasManaged() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.kind == MemoryKind::kManaged) return true;
  }
  return false;
}

void DeviceMemory::TouchOne() const {
  const volatile char* byte = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!allocations_.empty()) byte = static_cast<const char*>(Pointer(allocations_.begin()->first));
  }
  if (byte != nullptr) (void)*byte;
}

bool DeviceMemory::HasShared() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.exported || allocation.kind == MemoryKind::kImported) return true;
  }
  return false;
}

void DeviceMemory::UnmapExtra() {
  if (extra_ != nullptr) munmap(extra_, extra_bytes_);
  extra_ = nullptr;
}

Result DeviceMemory::SaveToHost(ServerLink* link, uint64_t extra_bytes) {
  std::unique_lock lock(mutex_);
  if (extra_bytes > 0) {
    extra_ =
        mmap(nullptr, extra_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (extra_ == MAP_FAILED) extra_ = nullptr;
    extra_bytes_ = extra_bytes;
  }
  for (auto& [address, allocation] : allocations_) {
    if (!allocation.mapped) continue;
    // Driver 580 has them all in one such mapping.
    void* copy =
        mmap(nullptr, allocation.bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | (allocation.bytes > kMostPopulated ? 0 : MAP_POPULATE), -1, 0);
    if (copy == MAP_FAILED) {
      lock.unlock();
      DiscardSaved();
      return gpu::cuda::kOutOfMemory;
    }
    gpu::cuda::Uuid gpu;
    uint64_t bytes;
    int memory = -1;
    link->OpenShared(allocation.id, &gpu, &bytes, &memory);
    CopyWritten(static_cast<char*>(copy), static_cast<const char*>(Pointer(address)), allocation.bytes,
                memory);
    allocation.saved = copy;
  }
  return gpu::cuda::kSuccess;
}

void DeviceMemory::DiscardSaved() {
  const std::lock_guard lock(mutex_);
  UnmapExtra();
  for (auto& [address, allocation] : allocations_) {
    if (!allocation.mapped || allocation.saved == nullptr) continue;
    munmap(allocation.saved, allocation.bytes);
    allocation.saved = nullptr;
  }
}

void DeviceMemory::ReleaseDevices(bool leaves_holes) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, allocation] : allocations_) {
    if (leaves_holes) {
      munmap(Pointer(address), allocation.bytes);
      allocation.mapped = false;
      continue;
    }
    mmap(Pointer(address), allocation.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    allocation.mapped = false;
  }
}

Result DeviceMemory::LoadToDevices(ServerLink* link, const std::vector<Gpu>& devices) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, allocation] : allocations_) {
    int memory = -1;
    const Result result = link->Allocate(devices[static_cast<size_t>(allocation.device)].uuid,
                                         allocation.bytes, &allocation.id, &memory);
    if (result != gpu::cuda::kSuccess) return result;
    allocation.loaded = MapShared(memory, allocation.bytes);
    if (allocation.loaded == nullptr) return gpu::cuda::kOutOfMemory;
    // Nothing saved: the driver lost it, says an injected fault; the new memory holds zeros.
    if (allocation.saved != nullptr) {
      CopyNonZeroPages(static_cast<char*>(allocation.loaded), static_cast<const char*>(allocation.saved),
                       allocation.bytes);
    }
  }
  return gpu::cuda::kSuccess;
}

void DeviceMemory::DiscardLoaded() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, allocation] : allocations_) {
    if (allocation.loaded != nullptr) munmap(allocation.loaded, allocation.bytes);
    allocation.loaded = nullptr;
  }
}

void DeviceMemory::SwitchToDevices() {
  const std::lock_guard lock(mutex_);
  UnmapExtra();
  for (auto& [address, allocation] : allocations_) {
    mremap(allocation.loaded, allocation.bytes, allocation.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
           Pointer(address));
    if (allocation.saved != nullptr) munmap(allocation.saved, allocation.bytes);
    allocation.saved = nullptr;
    allocation.loaded = nullptr;
    allocation.mapped = true;
  }
}

}  // namespace rekindle::gpu_sim
