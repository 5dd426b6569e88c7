// The job's connection to the server of the simulated GPUs. As long as it is open, CRIU cannot carry the job.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

// Thread-safe.
class ServerLink {
 public:
  ServerLink() = default;
  ~ServerLink() { Close(); }
  ServerLink(const ServerLink&) = delete;
  ServerLink& operator=(const ServerLink&) = delete;

  // To the server that the environment names now. kNoDevice: it names none, or none answers.
  gpu::cuda::Result Open(std::vector<Gpu>* gpus, Settings* settings);
  void Close();
  void TakeOver(ServerLink* other);
  // In a forked child, where another thread may have held our lock.
  void CloseUnlocked();

  gpu::cuda::Result Gpus(std::vector<Gpu>* gpus);
  gpu::cuda::Result Allocate(const gpu::cuda::Uuid& gpu, uint64_t bytes, uint64_t* id, int* memory);
  gpu::cuda::Result Free(uint64_t id);
  gpu::cuda::Result OpenShared(uint64_t id, gpu::cuda::Uuid* gpu, uint64_t* bytes, int* memory);
  gpu::cuda::Result UseContext(const gpu::cuda::Uuid& gpu);
  gpu::cuda::Result DropContext(const gpu::cuda::Uuid& gpu);
  Fault BeginCall(Call call);

 private:
  gpu::cuda::Result Ask(const Request& request, Reply* reply, std::string* text = nullptr,
                        int* descriptor = nullptr);

  std::mutex mutex_;
  int socket_ = -1;
};

}  // namespace rekindle::gpu_sim
