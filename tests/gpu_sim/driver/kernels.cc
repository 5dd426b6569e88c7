#include "tests/gpu_sim/driver/kernels.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;
using Parameters = std::vector<uint64_t>;

template <typename T>
T* Range(const DeviceMemory& memory, uint64_t address, uint64_t count) {
  if (count > ~uint64_t{0} / sizeof(T) || !memory.Accessible(address, count * sizeof(T))) return nullptr;
  return reinterpret_cast<T*>(address);
}

// rk_step_f32(x, n, a, b): x = a * x + b, each operation rounded (this file is compiled without contraction).
Result StepFloat(const Parameters& parameters, const DeviceMemory& memory) {
  const uint64_t count = parameters[1];
  float* x = Range<float>(memory, parameters[0], count);
  if (x == nullptr) return gpu::cuda::kIllegalAddress;
  const float a = std::bit_cast<float>(static_cast<uint32_t>(parameters[2]));
  const float b = std::bit_cast<float>(static_cast<uint32_t>(parameters[3]));
  for (uint64_t i = 0; i < count; ++i) {
    const float product = a * x[i];
    x[i] = product + b;
  }
  return gpu::cuda::kSuccess;
}

// rk_step_u64(x, n, a, b)
Result StepInteger(const Parameters& parameters, const DeviceMemory& memory) {
  const uint64_t count = parameters[1];
  uint64_t* x = Range<uint64_t>(memory, parameters[0], count);
  if (x == nullptr) return gpu::cuda::kIllegalAddress;
  for (uint64_t i = 0; i < count; ++i) x[i] = parameters[2] * x[i] + parameters[3];
  return gpu::cuda::kSuccess;
}

// rk_fill_u64(x, n, seed): the splitmix64 sequence.
Result Fill(const Parameters& parameters, const DeviceMemory& memory) {
  const uint64_t count = parameters[1];
  uint64_t* x = Range<uint64_t>(memory, parameters[0], count);
  if (x == nullptr) return gpu::cuda::kIllegalAddress;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t z = parameters[2] + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    x[i] = z ^ (z >> 31);
  }
  return gpu::cuda::kSuccess;
}

// rk_checksum_u64(x, n, sum): *sum += each x times an odd weight of its place.
Result Checksum(const Parameters& parameters, const DeviceMemory& memory) {
  const uint64_t count = parameters[1];
  const uint64_t* x = Range<uint64_t>(memory, parameters[0], count);
  uint64_t* sum = Range<uint64_t>(memory, parameters[2], 1);
  if (x == nullptr || sum == nullptr) return gpu::cuda::kIllegalAddress;
  uint64_t part = 0;
  for (uint64_t i = 0; i < count; ++i) part += x[i] * (2 * i + 1);
  std::atomic_ref(*sum).fetch_add(part);
  return gpu::cuda::kSuccess;
}

// rk_spin(nanoseconds)
Result Spin(const Parameters& parameters, const DeviceMemory&) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(parameters[0]));
  return gpu::cuda::kSuccess;
}

}  // namespace

const Kernel* FindKernel(const std::string& name) {
  static const std::vector<Kernel>& kernels = *new std::vector<Kernel>{
      {"rk_step_f32", {8, 8, 4, 4}, StepFloat},
      {"rk_step_u64", {8, 8, 8, 8}, StepInteger},
      {"rk_fill_u64", {8, 8, 8}, Fill},
      {"rk_checksum_u64", {8, 8, 8}, Checksum},
      {"rk_spin", {8}, Spin},
  };
  for (const Kernel& kernel : kernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

std::vector<std::string> PtxEntries(const char* text) {
  std::vector<std::string> entries;
  if (std::strstr(text, ".version") == nullptr || std::strstr(text, ".target") == nullptr) return entries;
  constexpr char kEntry[] = ".entry";
  for (const char* next = std::strstr(text, kEntry); next != nullptr; next = std::strstr(next, kEntry)) {
    next += sizeof(kEntry) - 1;
    next += std::strspn(next, " \t\n");
    entries.emplace_back(next, std::strcspn(next, " \t\n("));
  }
  return entries;
}

}  // namespace rekindle::gpu_sim
