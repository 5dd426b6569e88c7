#include "tests/gpu_jobs/vector_block.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/gpu_jobs/kernels.h"
#include "tests/gpu_jobs/state_file.h"

namespace rekindle::gpu_jobs {
namespace {

constexpr uint64_t kMostFloatBytes = 256 << 10;
constexpr unsigned kThreads = 256, kMostBlocks = 1024;

uint64_t Number(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t WeightedSum(uint64_t seed, uint64_t count) {
  const uint64_t parts = std::max(1u, std::thread::hardware_concurrency());
  std::vector<uint64_t> sums(parts, 0);
  std::vector<std::thread> threads;
  for (uint64_t part = 0; part < parts; ++part) {
    threads.emplace_back([=, &sums] {
      uint64_t sum = 0;
      const uint64_t end = part + 1 == parts ? count : count / parts * (part + 1);
      for (uint64_t i = count / parts * part; i < end; ++i) sum += Number(seed, i) * (2 * i + 1);
      sums[part] = sum;
    });
  }
  uint64_t sum = 0;
  for (uint64_t part = 0; part < parts; ++part) {
    threads[part].join();
    sum += sums[part];
  }
  return sum;
}

// What a step multiplies with and adds: other values in each step, so that a repeated or lost one shows.
uint64_t Factor(uint64_t step) { return Number(1, step) | 1; }
uint64_t Summand(uint64_t step) { return Number(2, step); }
// The product of two factors in a row is about 1: the floats neither grow nor fade.
float FloatFactor(uint64_t step) { return step % 2 == 0 ? 1.0009765625f : 0.99902439f; }
float FloatSummand(uint64_t step) { return static_cast<float>(static_cast<int>(step % 15) - 7) * 0.125f; }

}  // namespace

Kernels::Kernels(const DriverApi& api) {
  Module* module = nullptr;
  Check(api.cuModuleLoadData(&module, kKernels), "cuModuleLoadData");
  Check(api.cuModuleGetFunction(&step_u64, module, "rk_step_u64"), "cuModuleGetFunction rk_step_u64");
  Check(api.cuModuleGetFunction(&step_f32, module, "rk_step_f32"), "cuModuleGetFunction rk_step_f32");
  Check(api.cuModuleGetFunction(&fill, module, "rk_fill_u64"), "cuModuleGetFunction rk_fill_u64");
  Check(api.cuModuleGetFunction(&checksum, module, "rk_checksum_u64"), "cuModuleGetFunction rk_checksum_u64");
  Check(api.cuModuleGetFunction(&spin, module, "rk_spin"), "cuModuleGetFunction rk_spin");
}

VectorBlock::VectorBlock(const DriverApi& api, Context* context, const Kernels& kernels, uint64_t bytes,
                         uint64_t seed, bool managed)
    : api_(api), context_(context), kernels_(kernels) {
  using gpu_jobs::Check;
  float_count_ = std::min(kMostFloatBytes, bytes / 4) / sizeof(float);
  count_ = (bytes - float_count_ * sizeof(float)) / sizeof(uint64_t);
  Check(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  Check(api_.cuStreamCreate(&stream_, 1), "cuStreamCreate");
  Check(api_.cuEventCreate(&done_, 0), "cuEventCreate");
  numbers_ = Allocate(count_ * sizeof(uint64_t), managed);
  floats_ = Allocate(float_count_ * sizeof(float), managed);
  device_sum_ = Allocate(sizeof(uint64_t), false);
  void* pinned = nullptr;
  Check(api_.cuMemAllocHost_v2(&pinned, sizeof(uint64_t)), "cuMemAllocHost");
  read_sum_ = static_cast<uint64_t*>(pinned);
  Check(api_.cuMemAllocHost_v2(&pinned, float_count_ * sizeof(float)), "cuMemAllocHost");
  read_floats_ = static_cast<float*>(pinned);

  for (uint64_t i = 0; i < float_count_; ++i) {
    expected_floats_.push_back(static_cast<float>(Number(seed, i) % 100'000) / 64.0f);
  }
  Check(api_.cuMemcpyHtoD_v2(floats_, expected_floats_.data(), float_count_ * sizeof(float)), "cuMemcpyHtoD");
  expected_sum_ = WeightedSum(seed, count_);
  weights_ = count_ * count_;
  Launch(kernels_.fill, {&numbers_, &count_, &seed});
  QueueCheck();
  VectorBlock::Check(0);
}

DeviceAddress VectorBlock::Allocate(uint64_t bytes, bool managed) const {
  DeviceAddress address = 0;
  constexpr unsigned kAttachGlobal = 1;
  const Result result =
      managed ? api_.cuMemAllocManaged(&address, bytes, kAttachGlobal) : api_.cuMemAlloc_v2(&address, bytes);
  gpu_jobs::Check(result, managed ? "cuMemAllocManaged" : "cuMemAlloc");
  return address;
}

void VectorBlock::Launch(Function* function, std::vector<void*> parameters) {
  const bool one = function == kernels_.spin;
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>(kMostBlocks, count_ / kThreads + 1));
  gpu_jobs::Check(api_.cuLaunchKernel(function, one ? 1 : blocks, 1, 1, one ? 1 : kThreads, 1, 1, 0, stream_,
                                      parameters.data(), nullptr),
                  "cuLaunchKernel");
}

void VectorBlock::BeginStep(uint64_t step) {
  gpu_jobs::Check(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  uint64_t a = Factor(step), b = Summand(step);
  Launch(kernels_.step_u64, {&numbers_, &count_, &a, &b});
  expected_sum_ = a * expected_sum_ + b * weights_;
  float fa = FloatFactor(step), fb = FloatSummand(step);
  Launch(kernels_.step_f32, {&floats_, &float_count_, &fa, &fb});
  for (float& x : expected_floats_) {
    const float product = fa * x;
    x = product + fb;
  }
  QueueCheck();
}

void VectorBlock::QueueCheck() {
  using gpu_jobs::Check;
  *read_sum_ = 0;
  Check(api_.cuMemcpyHtoDAsync_v2(device_sum_, read_sum_, sizeof(uint64_t), stream_), "cuMemcpyHtoDAsync");
  Launch(kernels_.checksum, {&numbers_, &count_, &device_sum_});
  Check(api_.cuMemcpyDtoHAsync_v2(read_sum_, device_sum_, sizeof(uint64_t), stream_), "cuMemcpyDtoHAsync");
  Check(api_.cuMemcpyDtoHAsync_v2(read_floats_, floats_, float_count_ * sizeof(float), stream_),
        "cuMemcpyDtoHAsync");
  Check(api_.cuEventRecord(done_, stream_), "cuEventRecord");
}

uint64_t VectorBlock::Check(uint64_t step) {
  gpu_jobs::Check(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  // Not the stream's synchronize: drivers up to 595 crash a job that calls it while its memory is out.
  gpu_jobs::Check(api_.cuEventSynchronize(done_), "cuEventSynchronize");
  if (*read_sum_ != expected_sum_) {
    Die("step %llu: the device's numbers sum up to %016llx, expected %016llx",
        static_cast<unsigned long long>(step), static_cast<unsigned long long>(*read_sum_),
        static_cast<unsigned long long>(expected_sum_));
  }
  if (std::memcmp(read_floats_, expected_floats_.data(), float_count_ * sizeof(float)) != 0) {
    Die("step %llu: the device's floats are not what they should be", static_cast<unsigned long long>(step));
  }
  return *read_sum_;
}

uint64_t VectorBlock::EndStep(uint64_t step) { return Check(step); }

void VectorBlock::Call(FirstCall call) {
  using gpu_jobs::Check;
  switch (call) {
    case FirstCall::kNone:
      break;
    case FirstCall::kContextSynchronize:
      Check(api_.cuCtxSynchronize(), "cuCtxSynchronize");
      break;
    case FirstCall::kStreamSynchronize:
      Check(api_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
      break;
    case FirstCall::kEventSynchronize:
      Check(api_.cuEventSynchronize(done_), "cuEventSynchronize");
      break;
    case FirstCall::kCopy:
      Check(api_.cuMemcpyHtoD_v2(device_sum_, read_sum_, sizeof(uint64_t)), "cuMemcpyHtoD");
      break;
  }
}

void VectorBlock::Spin(uint64_t milliseconds) {
  gpu_jobs::Check(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  uint64_t nanoseconds = milliseconds * 1'000'000;
  Launch(kernels_.spin, {&nanoseconds});
  gpu_jobs::Check(api_.cuEventRecord(done_, stream_), "cuEventRecord");
}

}  // namespace rekindle::gpu_jobs
