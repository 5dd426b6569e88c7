// Modules and launches.
#include <cstring>

#include "tests/gpu_sim/driver/api.h"

using namespace rekindle::gpu_sim;
namespace cuda = rekindle::gpu::cuda;

GPU_SIM_API cuModuleLoadData(Module** module, const void* image) {
  if (module == nullptr || image == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (CurrentContext(process) == nullptr) return cuda::kInvalidContext;
    auto created = std::make_shared<Module>();
    for (const std::string& entry : PtxEntries(static_cast<const char*>(image)))
      created->entries.insert(entry);
    if (created->entries.empty()) return cuda::kInvalidImage;
    *module = process.modules().Add(created);
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}

GPU_SIM_API cuModuleUnload(Module* module) {
  return Process::Get().InCall([&](Process& process) {
    return process.modules().Remove(module) == nullptr ? cuda::kInvalidHandle : cuda::kSuccess;
  });
}

GPU_SIM_API cuModuleGetFunction(Function** function, Module* module, const char* name) {
  if (function == nullptr || name == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Module> found = process.modules().Find(module);
    if (found == nullptr) return cuda::kInvalidHandle;
    const Kernel* kernel = found->entries.contains(name) ? FindKernel(name) : nullptr;
    if (kernel == nullptr) return cuda::kNotFound;
    Function& known = found->functions[name];
    known.kernel = kernel;
    *function = &known;
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void* stream,
                           void** parameters, void** extra) {
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (function == nullptr || uint64_t{grid_x} * grid_y * grid_z == 0 || threads == 0 || threads > 1024 ||
      parameters == nullptr || extra != nullptr) {
    return cuda::kInvalidValue;
  }
  return Process::Get().InCall([&](Process& process) {
    const cuda::Result injected = process.Injected(Call::kLaunch);
    if (injected != cuda::kSuccess) return injected;
    const Kernel* kernel = function->kernel;
    std::vector<uint64_t> values(kernel->parameter_bytes.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&values[i], parameters[i], kernel->parameter_bytes[i]);
    }
    return Queue(process, stream, [kernel, values = std::move(values), &memory = process.memory()] {
      return kernel->run(values, memory);
    });
  });
}
