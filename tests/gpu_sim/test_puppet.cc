// A process of gpu_sim_test that does with the driver what it is told: a line of words in, a line of numbers
// out, the first of which is the driver's result. It is the target of checkpoint calls or their caller.
#include <dlfcn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpu_state/cuda_abi.h"
#include "gpu_state/nvml_abi.h"
#include "tests/gpu_jobs/kernels.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {
namespace {

namespace cuda = gpu::cuda;
namespace nvml = gpu::nvml;
using cuda::Result;
using Words = std::vector<std::string>;

template <typename... Parameters>
Result Cuda(const char* name, Parameters... parameters) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  auto function =
      library == nullptr ? nullptr : reinterpret_cast<Result (*)(Parameters...)>(dlsym(library, name));
  return function == nullptr ? cuda::kNotFound : function(parameters...);
}

template <typename... Parameters>
nvml::Return Nvml(const char* name, Parameters... parameters) {
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  auto function =
      library == nullptr ? nullptr : reinterpret_cast<Result (*)(Parameters...)>(dlsym(library, name));
  return function == nullptr ? nvml::kUnknown : function(parameters...);
}

struct Memory {
  unsigned long long address;
  uint64_t bytes;
};
struct IpcHandle {
  char bytes[64];
};

class Puppet {
 public:
  std::string Do(const Words& words);

 private:
  Result Context(int device);
  Result Allocate(const char* function, uint64_t bytes, std::ostream& out);
  Result Launch(const char* kernel, std::vector<uint64_t> parameters, void* stream);
  Result Sum(const Memory& memory, std::ostream& out);
  Result Share(const Words& words, std::ostream& out);
  Result Restore(const Words& words);
  Result DeviceText(int device, std::ostream& out);
  Result Management(std::ostream& out);
  Result RunCommand(const Words& words, std::ostream& out);

  const Memory& MemoryOf(const std::string& word) { return memory_.at(std::stoul(word)); }

  std::vector<Memory> memory_;
  void* module_ = nullptr;
  void* stream_ = nullptr;
};

Result Puppet::Context(int device) {
  void* context = nullptr;
  Result result = Cuda("cuDevicePrimaryCtxRetain", &context, device);
  if (result == 0) result = Cuda("cuCtxSetCurrent", context);
  if (result == 0) result = Cuda("cuModuleLoadData", &module_, static_cast<const void*>(gpu_jobs::kKernels));
  if (result == 0) result = Cuda("cuStreamCreate", &stream_, 0u);
  return result;
}

Result Puppet::Allocate(const char* function, uint64_t bytes, std::ostream& out) {
  Memory memory{0, bytes};
  const bool managed = std::strcmp(function, "cuMemAllocManaged") == 0;
  const Result result = managed ? Cuda(function, &memory.address, static_cast<size_t>(bytes), 1u)
                                : Cuda(function, &memory.address, static_cast<size_t>(bytes));
  if (result == 0) memory_.push_back(memory);
  out << ' ' << memory.address;
  return result;
}

Result Puppet::Launch(const char* kernel, std::vector<uint64_t> parameters, void* stream) {
  void* function = nullptr;
  const Result found = Cuda("cuModuleGetFunction", &function, module_, kernel);
  if (found != 0) return found;
  std::vector<void*> places;
  for (uint64_t& parameter : parameters) places.push_back(&parameter);
  return Cuda("cuLaunchKernel", function, 4u, 1u, 1u, 256u, 1u, 1u, 0u, stream, places.data(),
              static_cast<void**>(nullptr));
}

Result Puppet::Sum(const Memory& memory, std::ostream& out) {
  unsigned long long sum_address = 0;
  Result result = Cuda("cuMemAlloc_v2", &sum_address, sizeof(uint64_t));
  if (result != 0) return result;
  uint64_t sum = 0;
  result = Cuda("cuMemsetD8_v2", sum_address, static_cast<unsigned char>(0), sizeof(sum));
  if (result == 0)
    result = Launch("rk_checksum_u64", {memory.address, memory.bytes / 8, sum_address}, stream_);
  if (result == 0) result = Cuda("cuStreamSynchronize", stream_);
  if (result == 0) result = Cuda("cuMemcpyDtoH_v2", static_cast<void*>(&sum), sum_address, sizeof(sum));
  Cuda("cuMemFree_v2", sum_address);
  out << ' ' << sum;
  return result;
}

Result Puppet::Share(const Words& words, std::ostream& out) {
  IpcHandle handle = {};
  if (words[0] == "share") {
    const Result result = Cuda("cuIpcGetMemHandle", &handle, MemoryOf(words[1]).address);
    uint64_t id;
    std::memcpy(&id, handle.bytes, sizeof(id));
    out << ' ' << id;
    return result;
  }
  const uint64_t id = std::stoull(words[1]);
  std::memcpy(handle.bytes, &id, sizeof(id));
  Memory memory{0, std::stoull(words[2])};
  const Result result = Cuda("cuIpcOpenMemHandle_v2", &memory.address, handle, 1u);
  if (result == 0) memory_.push_back(memory);
  return result;
}

Result Puppet::Restore(const Words& words) {
  std::vector<cuda::GpuPair> pairs;
  for (size_t i = 2; i + 1 < words.size(); i += 2) {
    cuda::GpuPair pair;
    UuidFromText(words[i], &pair.from);
    UuidFromText(words[i + 1], &pair.to);
    pairs.push_back(pair);
  }
  cuda::RestoreArgs args = {};
  args.pairs = pairs.empty() ? nullptr : pairs.data();
  args.pair_count = static_cast<uint32_t>(pairs.size());
  return Cuda("cuCheckpointProcessRestore", std::stoi(words[1]), &args);
}

Result Puppet::DeviceText(int device, std::ostream& out) {
  cuda::Uuid uuid = {};
  char name[64] = "";
  Result result = Cuda("cuDeviceGetUuid_v2", &uuid, device);
  if (result == 0) result = Cuda("cuDeviceGetName", static_cast<char*>(name), 64, device);
  out << ' ' << UuidText(uuid) << ' ' << name;
  return result;
}

// Of each GPU: UUID, name, total, used, and each process's ID and bytes.
Result Puppet::Management(std::ostream& out) {
  unsigned count = 0;
  nvml::Return result = Nvml("nvmlInit_v2");
  if (result == 0) result = Nvml("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; result == 0 && i < count; ++i) {
    nvml::Device device = nullptr;
    char uuid[nvml::kTextBytes], name[nvml::kTextBytes];
    nvml::Memory memory = {};
    nvml::ProcessInfo processes[64];
    unsigned process_count = 64;
    result = Nvml("nvmlDeviceGetHandleByIndex_v2", i, &device);
    if (result == 0) result = Nvml("nvmlDeviceGetUUID", device, static_cast<char*>(uuid), nvml::kTextBytes);
    if (result == 0) result = Nvml("nvmlDeviceGetName", device, static_cast<char*>(name), nvml::kTextBytes);
    if (result == 0) result = Nvml("nvmlDeviceGetMemoryInfo", device, &memory);
    if (result == 0) {
      result = Nvml("nvmlDeviceGetComputeRunningProcesses_v3", device, &process_count,
                    static_cast<nvml::ProcessInfo*>(processes));
    }
    out << ' ' << uuid << ' ' << name << ' ' << memory.total << ' ' << memory.used;
    for (unsigned p = 0; p < process_count; ++p)
      out << ' ' << processes[p].pid << ' ' << processes[p].used_bytes;
  }
  Nvml("nvmlShutdown");
  return result;
}

Result Puppet::RunCommand(const Words& words, std::ostream& out) {
  const std::string& command = words.at(0);
  const auto number = [&](size_t i) { return std::stoull(words.at(i)); };
  if (command == "init") return Cuda("cuInit", 0u);
  if (command == "version") {
    int version = 0;
    const Result result = Cuda("cuDriverGetVersion", &version);
    out << ' ' << version;
    return result;
  }
  if (command == "address-of") {
    void* function = nullptr;
    const Result result =
        Cuda("cuGetProcAddress", words.at(1).c_str(), &function, static_cast<int>(number(2)), uint64_t{0});
    out << ' ' << (function != nullptr);
    return result;
  }
  if (command == "device") return DeviceText(static_cast<int>(number(1)), out);
  if (command == "nvml") return Management(out);
  if (command == "context") return Context(static_cast<int>(number(1)));
  if (command == "alloc") return Allocate("cuMemAlloc_v2", number(1), out);
  if (command == "managed") return Allocate("cuMemAllocManaged", number(1), out);
  if (command == "free") return Cuda("cuMemFree_v2", MemoryOf(words.at(1)).address);
  if (command == "share" || command == "open-shared") return Share(words, out);
  if (command == "fill" || command == "step") {
    const Memory& memory = MemoryOf(words.at(1));
    std::vector<uint64_t> parameters = {memory.address, memory.bytes / 8, number(2)};
    if (command == "step") parameters.push_back(number(3));
    return Launch(command == "fill" ? "rk_fill_u64" : "rk_step_u64", parameters, stream_);
  }
  if (command == "spin") return Launch("rk_spin", {number(1) * 1'000'000}, stream_);
  if (command == "sum") return Sum(MemoryOf(words.at(1)), out);
  if (command == "sync") return Cuda("cuCtxSynchronize");
  if (command == "fork") {
    // The child never asks the driver for anything; it ends with us.
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    out << ' ' << child;
    return 0;
  }
  const int pid = static_cast<int>(number(1));
  if (command == "state" || command == "thread") {
    int value = -1;
    const Result result =
        Cuda(command == "state" ? "cuCheckpointProcessGetState" : "cuCheckpointProcessGetRestoreThreadId",
             pid, &value);
    out << ' ' << value;
    return result;
  }
  if (command == "lock" || command == "lock-reserved") {
    cuda::LockArgs args = {};
    args.timeout_ms = static_cast<uint32_t>(number(2));
    args.reserved1[6] = command == "lock-reserved";
    return Cuda("cuCheckpointProcessLock", pid, &args);
  }
  cuda::CheckpointArgs args = {};
  args.reserved[0] = words.size() > 2 && words[2] == "reserved";
  if (command == "checkpoint") return Cuda("cuCheckpointProcessCheckpoint", pid, &args);
  if (command == "unlock") return Cuda("cuCheckpointProcessUnlock", pid, &args);
  if (command == "restore") return Restore(words);
  std::abort();
}

std::string Puppet::Do(const Words& words) {
  std::ostringstream more;
  const Result result = RunCommand(words, more);
  return std::to_string(result) + more.str();
}

}  // namespace
}  // namespace rekindle::gpu_sim

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rekindle::gpu_sim::Puppet puppet;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    std::cout << puppet.Do(words) << std::endl;
  }
  return 0;
}
