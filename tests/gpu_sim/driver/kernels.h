// The device code that the simulated driver knows, as host functions: the same kernels as in
// tests/gpu_jobs/kernels.h, found by name in a module whose PTX has an entry of that name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/gpu_sim/driver/device_memory.h"

namespace rekindle::gpu_sim {

struct Kernel {
  const char* name;
  std::vector<size_t> parameter_bytes;
  // Parameters as eight bytes each. kIllegalAddress: they point outside the job's device memory.
  gpu::cuda::Result (*run)(const std::vector<uint64_t>& parameters, const DeviceMemory& memory);
};

const Kernel* FindKernel(const std::string& name);

// The names behind `.entry` in PTX text; empty if it is none.
std::vector<std::string> PtxEntries(const char* text);

}  // namespace rekindle::gpu_sim
