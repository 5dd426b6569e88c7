// The CUDA driver API for test jobs, found at run time: on the real driver or on the one of tests/gpu_sim.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu_jobs {

using gpu::cuda::Result;
using DeviceAddress = unsigned long long;
struct Context;
struct Stream;
struct Event;
struct Module;
struct Function;
struct IpcHandle {
  char bytes[64];
};

// One field per function, named as in cuda.h.
struct DriverApi {
  Result (*cuInit)(unsigned flags);
  Result (*cuGetErrorName)(Result error, const char** name);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(int* device, int ordinal);
  Result (*cuDevicePrimaryCtxRetain)(Context** context, int device);
  Result (*cuCtxCreate_v2)(Context** context, unsigned flags, int device);
  Result (*cuCtxSetCurrent)(Context* context);
  Result (*cuCtxSynchronize)();
  Result (*cuMemAlloc_v2)(DeviceAddress* address, size_t bytes);
  Result (*cuMemAllocManaged)(DeviceAddress* address, size_t bytes, unsigned flags);
  Result (*cuMemAllocHost_v2)(void** memory, size_t bytes);
  Result (*cuMemcpyHtoD_v2)(DeviceAddress to, const void* from, size_t bytes);
  Result (*cuMemcpyHtoDAsync_v2)(DeviceAddress to, const void* from, size_t bytes, Stream* stream);
  Result (*cuMemcpyDtoHAsync_v2)(void* to, DeviceAddress from, size_t bytes, Stream* stream);
  Result (*cuStreamCreate)(Stream** stream, unsigned flags);
  Result (*cuStreamSynchronize)(Stream* stream);
  Result (*cuEventCreate)(Event** event, unsigned flags);
  Result (*cuEventRecord)(Event* event, Stream* stream);
  Result (*cuEventSynchronize)(Event* event);
  Result (*cuModuleLoadData)(Module** module, const void* image);
  Result (*cuModuleGetFunction)(Function** function, Module* module, const char* name);
  Result (*cuLaunchKernel)(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           Stream* stream, void** parameters, void** extra);
  Result (*cuIpcGetMemHandle)(IpcHandle* handle, DeviceAddress address);
  Result (*cuIpcOpenMemHandle_v2)(DeviceAddress* address, IpcHandle handle, unsigned flags);
};

// Opens libcuda.so.1; ends the process with a message if it or one of its functions is not there.
const DriverApi& LoadDriver();

// Ends the process with a message if a call failed.
void Check(Result result, const char* what);

}  // namespace rekindle::gpu_jobs
