// Memory: allocating, copying, setting, sharing between processes.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tests/gpu_sim/driver/api.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

// CUipcMemHandle
struct IpcHandle {
  uint64_t server_id;
  char reserved[56];
};

Result AllocateOf(MemoryKind kind, DeviceAddress* address, size_t bytes) {
  if (address == nullptr) return gpu::cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return gpu::cuda::kInvalidContext;
    const Result injected = process.Injected(Call::kMemoryAllocate);
    if (injected != gpu::cuda::kSuccess) return injected;
    const Gpu& gpu = process.devices()[static_cast<size_t>(context->device)].gpu;
    return process.memory().Allocate(&process.link(), gpu, context->device, context.get(), kind, bytes,
                                     address);
  });
}

enum class Wait { kNo, kYes };

// Work on device memory, in a stream. The addresses are looked at when the work is done, like on a device.
Result QueueAccess(void* stream, Wait wait, std::function<Result(const DeviceMemory&)> work) {
  return Process::Get().InCall([&](Process& process) {
    const Result queued =
        Queue(process, stream, [&memory = process.memory(), work = std::move(work)] { return work(memory); });
    return queued == gpu::cuda::kSuccess && wait == Wait::kYes ? WaitForNullStream(process) : queued;
  });
}

Result CopyToDevice(DeviceAddress to, const void* from, size_t bytes, void* stream, Wait wait) {
  return QueueAccess(stream, wait, [=](const DeviceMemory& memory) {
    if (!memory.Accessible(to, bytes)) return gpu::cuda::kIllegalAddress;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return gpu::cuda::kSuccess;
  });
}

Result CopyToHost(void* to, DeviceAddress from, size_t bytes, void* stream, Wait wait) {
  return QueueAccess(stream, wait, [=](const DeviceMemory& memory) {
    if (!memory.Accessible(from, bytes)) return gpu::cuda::kIllegalAddress;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return gpu::cuda::kSuccess;
  });
}

Result CopyOnDevice(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream, Wait wait) {
  return QueueAccess(stream, wait, [=](const DeviceMemory& memory) {
    if (!memory.Accessible(from, bytes) || !memory.Accessible(to, bytes)) return gpu::cuda::kIllegalAddress;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return gpu::cuda::kSuccess;
  });
}

template <typename T>
Result Set(DeviceAddress to, T value, size_t count) {
  return QueueAccess(nullptr, Wait::kYes, [=](const DeviceMemory& memory) {
    if (count > ~size_t{0} / sizeof(T) || !memory.Accessible(to, count * sizeof(T))) {
      return gpu::cuda::kIllegalAddress;
    }
    std::fill_n(reinterpret_cast<T*>(to), count, value);
    return gpu::cuda::kSuccess;
  });
}

// Pinned host memory: its size stands before it.
constexpr size_t kHostHeader = 4096;

}  // namespace
}  // namespace rekindle::gpu_sim

using namespace rekindle::gpu_sim;
namespace cuda = rekindle::gpu::cuda;

GPU_SIM_API cuMemAlloc_v2(DeviceAddress* address, size_t bytes) {
  return AllocateOf(MemoryKind::kDevice, address, bytes);
}

GPU_SIM_API cuMemAllocManaged(DeviceAddress* address, size_t bytes, unsigned) {
  return AllocateOf(MemoryKind::kManaged, address, bytes);
}

GPU_SIM_API cuMemFree_v2(DeviceAddress address) {
  return Process::Get().InCall([&](Process& process) {
    if (address == 0) return cuda::kSuccess;
    const cuda::Result injected = process.Injected(Call::kMemoryFree);
    if (injected != cuda::kSuccess) return injected;
    WaitForNullStream(process);
    return process.memory().Free(&process.link(), address);
  });
}

GPU_SIM_API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    std::vector<Gpu> gpus;
    const cuda::Result result = process.link().Gpus(&gpus);
    for (const Gpu& gpu : gpus) {
      if (!(gpu.uuid == process.devices()[static_cast<size_t>(context->device)].gpu.uuid)) continue;
      *total_bytes = gpu.total_bytes;
      *free_bytes = gpu.total_bytes - gpu.used_bytes;
    }
    return result;
  });
}

GPU_SIM_API cuMemAllocHost_v2(void** memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (CurrentContext(process) == nullptr) return cuda::kInvalidContext;
    void* whole =
        mmap(nullptr, bytes + kHostHeader, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) return cuda::kOutOfMemory;
    *static_cast<size_t*>(whole) = bytes + kHostHeader;
    *memory = static_cast<char*>(whole) + kHostHeader;
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuMemFreeHost(void* memory) {
  if (memory == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process&) {
    void* whole = static_cast<char*>(memory) - kHostHeader;
    munmap(whole, *static_cast<size_t*>(whole));
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuMemcpyHtoD_v2(DeviceAddress to, const void* from, size_t bytes) {
  return CopyToDevice(to, from, bytes, nullptr, Wait::kYes);
}
GPU_SIM_API cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes, void* stream) {
  return CopyToDevice(to, from, bytes, stream, Wait::kNo);
}
GPU_SIM_API cuMemcpyDtoH_v2(void* to, DeviceAddress from, size_t bytes) {
  return CopyToHost(to, from, bytes, nullptr, Wait::kYes);
}
GPU_SIM_API cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes, void* stream) {
  return CopyToHost(to, from, bytes, stream, Wait::kNo);
}
GPU_SIM_API cuMemcpyDtoD_v2(DeviceAddress to, DeviceAddress from, size_t bytes) {
  return CopyOnDevice(to, from, bytes, nullptr, Wait::kYes);
}
GPU_SIM_API cuMemcpyDtoDAsync_v2(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream) {
  return CopyOnDevice(to, from, bytes, stream, Wait::kNo);
}
GPU_SIM_API cuMemsetD8_v2(DeviceAddress to, unsigned char value, size_t count) {
  return Set(to, value, count);
}
GPU_SIM_API cuMemsetD32_v2(DeviceAddress to, unsigned value, size_t count) { return Set(to, value, count); }

GPU_SIM_API cuIpcGetMemHandle(IpcHandle* handle, DeviceAddress address) {
  if (handle == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    *handle = {};
    return process.memory().Export(address, &handle->server_id);
  });
}

GPU_SIM_API cuIpcOpenMemHandle_v2(DeviceAddress* address, IpcHandle handle, unsigned) {
  if (address == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    return process.memory().Import(&process.link(), handle.server_id, context->device, context.get(),
                                   address);
  });
}

GPU_SIM_API cuIpcCloseMemHandle(DeviceAddress address) {
  return Process::Get().InCall([&](Process& process) {
    WaitForNullStream(process);
    return process.memory().Free(&process.link(), address);
  });
}
