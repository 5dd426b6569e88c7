// Start, version, errors, devices, and the way to all functions by name.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/gpu_sim/driver/api.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

struct ErrorText {
  Result error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {gpu::cuda::kSuccess, "CUDA_SUCCESS", "no error"},
    {gpu::cuda::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {gpu::cuda::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {gpu::cuda::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {gpu::cuda::kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {gpu::cuda::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {gpu::cuda::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {gpu::cuda::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {gpu::cuda::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {gpu::cuda::kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {gpu::cuda::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {gpu::cuda::kIllegalState, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {gpu::cuda::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {gpu::cuda::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {gpu::cuda::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {gpu::cuda::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {gpu::cuda::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {gpu::cuda::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {gpu::cuda::kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* FindError(Result error) {
  for (const ErrorText& each : kErrors) {
    if (each.error == error) return &each;
  }
  return nullptr;
}

Result WithDevice(int device, Result (*body)(const Gpu& gpu, void* to), void* to) {
  if (to == nullptr) return gpu::cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (device < 0 || static_cast<size_t>(device) >= process.devices().size())
      return gpu::cuda::kInvalidDevice;
    return body(process.devices()[static_cast<size_t>(device)].gpu, to);
  });
}

// A function as a later version of CUDA may have it, with structures that nobody knows yet.
Result OfTheFuture(int, const void*) { return gpu::cuda::kInvalidValue; }

// What the function of this name was called in CUDA `version`: the newest form of it that we have.
void* FunctionOf(const std::string& name, int version, bool* too_old) {
  *too_old = version < gpu::cuda::kFirstVersionWithCheckpointApi && name.compare(0, 12, "cuCheckpoint") == 0;
  Dl_info own;
  if (*too_old || dladdr(reinterpret_cast<void*>(&FunctionOf), &own) == 0) return nullptr;
  if (version > gpu::cuda::kFirstVersionWithGpuPairs && name.compare(0, 12, "cuCheckpoint") == 0) {
    return reinterpret_cast<void*>(&OfTheFuture);
  }
  void* library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr || name.compare(0, 2, "cu") != 0) return nullptr;
  void* function =
      name == "cuGetProcAddress" && version < 12000 ? nullptr : dlsym(library, (name + "_v2").c_str());
  if (function == nullptr) function = dlsym(library, name.c_str());
  dlclose(library);
  return function;
}

}  // namespace
}  // namespace rekindle::gpu_sim

using namespace rekindle::gpu_sim;
namespace cuda = rekindle::gpu::cuda;

GPU_SIM_API cuInit(unsigned flags) { return flags == 0 ? Process::Get().Init() : cuda::kInvalidValue; }

GPU_SIM_API cuDriverGetVersion(int* version) {
  if (version == nullptr) return cuda::kInvalidValue;
  Reply reply;
  // Without a device too the library knows its version.
  *version = AskOnce({.op = Op::kHello}, "", &reply, nullptr) ? reply.settings.driver_version : 13000;
  return cuda::kSuccess;
}

GPU_SIM_API cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t, int* status) {
  if (symbol == nullptr || function == nullptr) return cuda::kInvalidValue;
  int driver_version = 0;
  cuDriverGetVersion(&driver_version);
  bool too_old = false;
  *function = FunctionOf(symbol, std::min(version, driver_version), &too_old);
  if (status != nullptr) *status = *function != nullptr ? 0 : too_old && driver_version > version ? 2 : 1;
  return *function != nullptr ? cuda::kSuccess : cuda::kNotFound;
}

GPU_SIM_API cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

GPU_SIM_API cuGetErrorName(cuda::Result error, const char** name) {
  if (name == nullptr) return cuda::kInvalidValue;
  const ErrorText* found = FindError(error);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? cuda::kInvalidValue : cuda::kSuccess;
}

GPU_SIM_API cuGetErrorString(cuda::Result error, const char** text) {
  if (text == nullptr) return cuda::kInvalidValue;
  const ErrorText* found = FindError(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? cuda::kInvalidValue : cuda::kSuccess;
}

GPU_SIM_API cuDeviceGetCount(int* count) {
  if (count == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    *count = static_cast<int>(process.devices().size());
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuDeviceGet(int* device, int ordinal) {
  if (device == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= process.devices().size()) return cuda::kInvalidDevice;
    *device = ordinal;
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuDeviceGetName(char* name, int bytes, int device) {
  if (bytes <= 0) return cuda::kInvalidValue;
  Gpu gpu;
  const auto copy = [](const Gpu& from, void* to) {
    *static_cast<Gpu*>(to) = from;
    return cuda::kSuccess;
  };
  const cuda::Result result = WithDevice(device, copy, &gpu);
  if (result != cuda::kSuccess || name == nullptr)
    return result != cuda::kSuccess ? result : cuda::kInvalidValue;
  std::strncpy(name, gpu.model, static_cast<size_t>(bytes));
  name[bytes - 1] = '\0';
  return cuda::kSuccess;
}

GPU_SIM_API cuDeviceGetUuid_v2(cuda::Uuid* uuid, int device) {
  const auto copy = [](const Gpu& gpu, void* to) {
    *static_cast<cuda::Uuid*>(to) = gpu.uuid;
    return cuda::kSuccess;
  };
  return WithDevice(device, copy, uuid);
}

GPU_SIM_API cuDeviceGetUuid(cuda::Uuid* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

GPU_SIM_API cuDeviceTotalMem_v2(size_t* bytes, int device) {
  const auto copy = [](const Gpu& gpu, void* to) {
    *static_cast<size_t*>(to) = gpu.total_bytes;
    return cuda::kSuccess;
  };
  return WithDevice(device, copy, bytes);
}

GPU_SIM_API cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (value == nullptr || attribute <= 0) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (device < 0 || static_cast<size_t>(device) >= process.devices().size()) return cuda::kInvalidDevice;
    switch (attribute) {
      case 1:  // MAX_THREADS_PER_BLOCK
      case 2:  // MAX_BLOCK_DIM_X
        *value = 1024;
        break;
      case 5:  // MAX_GRID_DIM_X
        *value = 0x7fffffff;
        break;
      case 10:  // WARP_SIZE
        *value = 32;
        break;
      case 16:  // MULTIPROCESSOR_COUNT
        *value = 4;
        break;
      case 33:  // PCI_BUS_ID
        *value = device + 1;
        break;
      case 41:  // UNIFIED_ADDRESSING
      case 83:  // MANAGED_MEMORY
        *value = 1;
        break;
      case 75:  // COMPUTE_CAPABILITY_MAJOR
        *value = 9;
        break;
      default:
        *value = 0;
    }
    return cuda::kSuccess;
  });
}
