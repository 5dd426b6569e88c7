// The job's allocations on simulated GPUs: memory of the server, mapped here at addresses that stay the same
// for the life of the job, while it is checkpointed too.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "tests/gpu_sim/driver/server_link.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

using DeviceAddress = unsigned long long;  // CUdeviceptr

enum class MemoryKind { kDevice, kManaged, kImported };

// Thread-safe.
class DeviceMemory {
 public:
  // A byte of it, wherever it is: nothing but dying comes of that while it is out.
  void TouchOne() const;
  gpu::cuda::Result Allocate(ServerLink* link, const Gpu& gpu, int device, const void* context,
                             MemoryKind kind, uint64_t bytes, DeviceAddress* address);
  gpu::cuda::Result Free(ServerLink* link, DeviceAddress address);
  void FreeAllOf(ServerLink* link, const void* context);

  // Shared memory, named by the server's id of it.
  gpu::cuda::Result Export(DeviceAddress address, uint64_t* id);
  gpu::cuda::Result Import(ServerLink* link, uint64_t id, int device, const void* context,
                           DeviceAddress* address);

  // Lies the whole range in one allocation whose contents are here?
  bool Accessible(DeviceAddress address, uint64_t bytes) const;
  bool UsesDevice(int device) const;
  bool HasManaged() const;
  bool HasShared() const;

  // The steps of a checkpoint: copies everything into private memory; then gives the devices' memory up, or
  // throws the copies away. A range whose memory is given up stays reserved.
  // With `extra_bytes` of host memory beside it.
  gpu::cuda::Result SaveToHost(ServerLink* link, uint64_t extra_bytes);
  void DiscardSaved();
  void ReleaseDevices(bool leaves_holes);

  // The steps of a restore: memory on devices[allocation's device], filled from the copies; then puts it in
  // its place, or gives it up.
  gpu::cuda::Result LoadToDevices(ServerLink* link, const std::vector<Gpu>& devices);
  void DiscardLoaded();
  void SwitchToDevices();

 private:
  struct Allocation {
    uint64_t bytes;
    int device;
    const void* context;
    MemoryKind kind;
    uint64_t id;
    bool exported = false;
    bool mapped = true;      // the range shows the server's memory
    void* saved = nullptr;   // checkpointed: its contents
    void* loaded = nullptr;  // within a restore: the new memory, not in its place yet
  };
  gpu::cuda::Result Remember(Allocation allocation, int memory, DeviceAddress* address);
  void Forget(ServerLink* link, std::map<DeviceAddress, Allocation>::iterator which);

  void UnmapExtra();

  mutable std::mutex mutex_;
  void* extra_ = nullptr;
  uint64_t extra_bytes_ = 0;
  std::map<DeviceAddress, Allocation> allocations_;
};

}  // namespace rekindle::gpu_sim
