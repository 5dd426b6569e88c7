#include "tests/gpu_jobs/driver_api.h"

#include <dlfcn.h>

#include "tests/gpu_jobs/state_file.h"

namespace rekindle::gpu_jobs {
namespace {

DriverApi api;

template <typename Pointer>
void Find(void* library, const char* name, Pointer* function) {
  *function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (*function == nullptr) Die("libcuda.so.1 has no %s", name);
}

}  // namespace

const DriverApi& LoadDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) Die("cannot load the CUDA driver: %s", dlerror());
#define FIND(name) Find(library, #name, &api.name)
  FIND(cuInit);
  FIND(cuGetErrorName);
  FIND(cuDeviceGetCount);
  FIND(cuDeviceGet);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxCreate_v2);
  FIND(cuCtxSetCurrent);
  FIND(cuCtxSynchronize);
  FIND(cuMemAlloc_v2);
  FIND(cuMemAllocManaged);
  FIND(cuMemAllocHost_v2);
  FIND(cuMemcpyHtoD_v2);
  FIND(cuMemcpyHtoDAsync_v2);
  FIND(cuMemcpyDtoHAsync_v2);
  FIND(cuStreamCreate);
  FIND(cuStreamSynchronize);
  FIND(cuEventCreate);
  FIND(cuEventRecord);
  FIND(cuEventSynchronize);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuLaunchKernel);
  FIND(cuIpcGetMemHandle);
  FIND(cuIpcOpenMemHandle_v2);
#undef FIND
  return api;
}

void Check(Result result, const char* what) {
  if (result == gpu::cuda::kSuccess) return;
  const char* name = nullptr;
  api.cuGetErrorName(result, &name);
  Die("%s: %s (%d)", what, name == nullptr ? "?" : name, result);
}

}  // namespace rekindle::gpu_jobs
