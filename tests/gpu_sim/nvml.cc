// The simulated libnvidia-ml.so.1: what the server knows, without taking anything from it. Each call asks
// over a connection of its own, so a process that once used the library stays one that CRIU can carry.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpu_state/nvml_abi.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {
namespace {

namespace nvml = gpu::nvml;

std::atomic<int> initialized{0};
std::atomic<uint32_t> lost_at_first{0};  // a bit for each GPU
static_assert(kMaxGpus <= 32);

bool Gpus(std::vector<Gpu>* gpus, Settings* settings) {
  Reply reply;
  std::string text;
  if (!AskOnce({.op = Op::kHello}, "", &reply, &text)) return false;
  *gpus = ArrayFromText<Gpu>(text);
  *settings = reply.settings;
  return true;
}

constexpr unsigned kFirstPidOutside = 4'000'000;

// A device's handle is its number plus one.
nvml::Return FindAny(nvml::Device device, Gpu* gpu, Settings* settings) {
  if (initialized == 0) return nvml::kUninitialized;
  std::vector<Gpu> gpus;
  if (!Gpus(&gpus, settings)) return nvml::kUnknown;
  const uintptr_t number = reinterpret_cast<uintptr_t>(device);
  if (number == 0 || number > gpus.size()) return nvml::kInvalidArgument;
  *gpu = gpus[number - 1];
  return nvml::kSuccess;
}

// One that is lost has a handle, if it was not lost when the library was initialised, and tells nothing.
nvml::Return Find(nvml::Device device, Gpu* gpu, Settings* settings) {
  nvml::Return result = FindAny(device, gpu, settings);
  while (result == nvml::kSuccess && gpu->silent != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    result = FindAny(device, gpu, settings);
  }
  return result == nvml::kSuccess && gpu->lost != 0 ? nvml::kGpuIsLost : result;
}

nvml::Return FindTold(nvml::Device device, Gpu* gpu, Settings* settings) {
  const nvml::Return result = Find(device, gpu, settings);
  return result == nvml::kSuccess && gpu->untold != 0 ? nvml::kNotSupported : result;
}

nvml::Return CopyText(const std::string& from, char* to, unsigned length) {
  if (to == nullptr) return nvml::kInvalidArgument;
  if (from.size() >= length) return nvml::kInsufficientSize;
  std::memcpy(to, from.c_str(), from.size() + 1);
  return nvml::kSuccess;
}

}  // namespace
}  // namespace rekindle::gpu_sim

#define GPU_SIM_NVML extern "C" __attribute__((visibility("default"))) rekindle::gpu::nvml::Return

using namespace rekindle::gpu_sim;

GPU_SIM_NVML nvmlInit_v2() {
  std::vector<Gpu> gpus;
  Settings settings;
  if (!Gpus(&gpus, &settings)) return 9;  // NVML_ERROR_DRIVER_NOT_LOADED
  uint32_t lost = 0;
  for (size_t i = 0; i < gpus.size(); ++i) lost |= (gpus[i].lost != 0 ? 1u : 0u) << i;
  if (initialized == 0) lost_at_first = lost;
  ++initialized;
  return nvml::kSuccess;
}

GPU_SIM_NVML nvmlShutdown() {
  if (initialized == 0) return nvml::kUninitialized;
  --initialized;
  return nvml::kSuccess;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(nvml::Return result) {
  switch (result) {
    case nvml::kSuccess:
      return "Success";
    case nvml::kUninitialized:
      return "Uninitialized";
    case nvml::kInvalidArgument:
      return "Invalid Argument";
    case nvml::kNotSupported:
      return "Not Supported";
    case nvml::kInsufficientSize:
      return "Insufficient Size";
    case 9:
      return "Driver Not Loaded";
    case nvml::kGpuIsLost:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}

GPU_SIM_NVML nvmlSystemGetDriverVersion(char* text, unsigned length) {
  if (initialized == 0) return nvml::kUninitialized;
  std::vector<Gpu> gpus;
  Settings settings;
  if (!Gpus(&gpus, &settings)) return nvml::kUnknown;
  return CopyText(settings.driver_text, text, length);
}

GPU_SIM_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  if (initialized == 0) return nvml::kUninitialized;
  std::vector<Gpu> gpus;
  Settings settings;
  if (count == nullptr) return nvml::kInvalidArgument;
  if (!Gpus(&gpus, &settings)) return nvml::kUnknown;
  *count = static_cast<unsigned>(gpus.size());
  return nvml::kSuccess;
}

GPU_SIM_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  if (device == nullptr) return nvml::kInvalidArgument;
  Gpu gpu;
  Settings settings;
  nvml::Device wanted = reinterpret_cast<nvml::Device>(uintptr_t{index} + 1);
  const nvml::Return result = FindAny(wanted, &gpu, &settings);
  if (result == nvml::kSuccess && gpu.lost != 0 && (lost_at_first >> index & 1) != 0) return nvml::kGpuIsLost;
  if (result == nvml::kSuccess) *device = wanted;
  return result;
}

GPU_SIM_NVML nvmlDeviceGetUUID(nvml::Device device, char* text, unsigned length) {
  Gpu gpu;
  Settings settings;
  const nvml::Return result = Find(device, &gpu, &settings);
  return result == nvml::kSuccess ? CopyText(UuidText(gpu.uuid), text, length) : result;
}

GPU_SIM_NVML nvmlDeviceGetName(nvml::Device device, char* text, unsigned length) {
  Gpu gpu;
  Settings settings;
  const nvml::Return result = Find(device, &gpu, &settings);
  return result == nvml::kSuccess ? CopyText(gpu.model, text, length) : result;
}

GPU_SIM_NVML nvmlDeviceGetMemoryInfo(nvml::Device device, nvml::Memory* memory) {
  if (memory == nullptr) return nvml::kInvalidArgument;
  Gpu gpu;
  Settings settings;
  const nvml::Return result = FindTold(device, &gpu, &settings);
  if (result == nvml::kSuccess) *memory = {gpu.total_bytes, gpu.total_bytes - gpu.used_bytes, gpu.used_bytes};
  return result;
}

GPU_SIM_NVML nvmlDeviceGetMigMode(nvml::Device device, unsigned* current, unsigned* pending) {
  if (current == nullptr || pending == nullptr) return nvml::kInvalidArgument;
  Gpu gpu;
  Settings settings;
  const nvml::Return result = Find(device, &gpu, &settings);
  *current = *pending = settings.mig;
  return result;
}

GPU_SIM_NVML nvmlDeviceGetComputeRunningProcesses_v3(nvml::Device device, unsigned* count,
                                                     nvml::ProcessInfo* processes) {
  if (count == nullptr || (*count > 0 && processes == nullptr)) return nvml::kInvalidArgument;
  Gpu gpu;
  Settings settings;
  const nvml::Return result = FindTold(device, &gpu, &settings);
  if (result != nvml::kSuccess) return result;
  Reply reply;
  std::string text;
  if (!AskOnce({.op = Op::kProcesses, .uuid = gpu.uuid}, "", &reply, &text)) return nvml::kUnknown;
  const std::vector<ProcessUse> uses = ArrayFromText<ProcessUse>(text);
  const unsigned room = *count;
  *count = static_cast<unsigned>(uses.size());
  if (uses.size() > room) return nvml::kInsufficientSize;
  for (size_t i = 0; i < uses.size(); ++i) {
    const unsigned outside = settings.pids_from_outside == 0 ? 0 : kFirstPidOutside;
    unsigned long long bytes = settings.bytes_untold == 0 ? uses[i].bytes : nvml::kUnknownBytes;
    if (settings.bytes_zero != 0) bytes = 0;
    processes[i] = {outside + static_cast<unsigned>(uses[i].pid), bytes, ~0u, ~0u};
  }
  return nvml::kSuccess;
}
