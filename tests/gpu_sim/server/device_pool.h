// The simulated GPUs, their memory (memfds, which only the server holds for ever) and who uses how much of
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

// Clients are connections, each of one process: what a client has is freed when its connection ends.
class DevicePool {
 public:
  explicit DevicePool(uint64_t context_bytes) : context_bytes_(context_bytes) {}

  void AddGpu(const Gpu& gpu);
  std::vector<Gpu> Gpus() const;
  void set_context_bytes(uint64_t bytes) { context_bytes_ = bytes; }

  // On success *descriptor is a memfd that stays the pool's.
  gpu::cuda::Result Allocate(int client, pid_t pid, const gpu::cuda::Uuid& uuid, uint64_t bytes, uint64_t* id,
                             int* descriptor);
  gpu::cuda::Result Free(int client, uint64_t id);
  gpu::cuda::Result OpenShared(uint64_t id, uint64_t* bytes, gpu::cuda::Uuid* uuid, int* descriptor);
  gpu::cuda::Result UseContext(int client, pid_t pid, const gpu::cuda::Uuid& uuid);
  gpu::cuda::Result DropContext(int client, const gpu::cuda::Uuid& uuid);
  void DropClient(int client);

  // This GPU from now on, and no other; null: none. False: there is no such GPU.
  bool SetLost(const gpu::cuda::Uuid* uuid) { return Mark(&Gpu::lost, uuid); }
  bool SetSilent(const gpu::cuda::Uuid* uuid) { return Mark(&Gpu::silent, uuid); }
  bool SetUntold(const gpu::cuda::Uuid* uuid) { return Mark(&Gpu::untold, uuid); }

  // Takes memory as if somebody outside used it; replaces what an earlier call took.
  bool Reserve(const gpu::cuda::Uuid& uuid, uint64_t bytes);

  std::vector<ProcessUse> Processes(const gpu::cuda::Uuid& uuid) const;
  std::string GpusJson() const;       // [{"uuid":…,"model":…,"total":…,"used":…,"max_used":…}, …]
  std::string ProcessesJson() const;  // [{"pid":…,"bytes":…,"gpus":{"GPU-…":…}}, …]

 private:
  struct Device {
    Gpu gpu;  // used_bytes: all of the below
    uint64_t max_used_bytes = 0;
    uint64_t reserved_bytes = 0;
  };
  struct Allocation {
    int client;
    pid_t pid;
    size_t device;
    uint64_t bytes;
    int descriptor;
  };
  struct ContextUse {
    pid_t pid;
    uint64_t bytes;
  };

  bool Find(const gpu::cuda::Uuid& uuid, size_t* device) const;
  bool Mark(uint32_t Gpu::*mark, const gpu::cuda::Uuid* uuid);
  gpu::cuda::Result Take(size_t device, uint64_t bytes);
  std::map<pid_t, uint64_t> BytesByProcess(size_t device) const;

  uint64_t context_bytes_;
  uint64_t next_id_ = 1;
  std::vector<Device> devices_;
  std::map<uint64_t, Allocation> allocations_;
  std::map<std::pair<int, size_t>, ContextUse> contexts_;  // by client and device
};

}  // namespace rekindle::gpu_sim
