// A part of the vector job's device memory, stepped in one stream of one context, and what the host knows
// must be in it.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/gpu_jobs/driver_api.h"

namespace rekindle::gpu_jobs {

struct Kernels {
  explicit Kernels(const DriverApi& api);  // loads them into the current context
  Function *step_u64, *step_f32, *fill, *checksum, *spin;
};

// A call that a step begins with, before anything else.
enum class FirstCall { kNone, kContextSynchronize, kStreamSynchronize, kEventSynchronize, kCopy };

// Most of the block are 64-bit numbers, each stepped by x = a x + b. Their weighted sum modulo 2^64 steps the
// same way (S = a S + b W with W the sum of weights), so the host can tell it at any step, however large the
// block is. The rest are floats, of which the host keeps a copy.
class VectorBlock {
 public:
  // In `context`, which has these kernels. Fills the memory and checks it.
  VectorBlock(const DriverApi& api, Context* context, const Kernels& kernels, uint64_t bytes, uint64_t seed,
              bool managed);

  void BeginStep(uint64_t step);    // queues it
  uint64_t EndStep(uint64_t step);  // waits, checks, and returns the sum; ends the process if it is wrong
  void Call(FirstCall call);        // in the current context
  void Spin(uint64_t milliseconds);

  DeviceAddress memory() const { return numbers_; }

 private:
  void Launch(Function* function, std::vector<void*> parameters);
  DeviceAddress Allocate(uint64_t bytes, bool managed) const;
  void QueueCheck();
  uint64_t Check(uint64_t step);

  const DriverApi& api_;
  Context* context_;
  const Kernels& kernels_;
  Stream* stream_ = nullptr;
  Event* done_ = nullptr;
  DeviceAddress numbers_ = 0, floats_ = 0, device_sum_ = 0;
  uint64_t count_ = 0, float_count_ = 0;
  uint64_t expected_sum_ = 0, weights_ = 0;
  std::vector<float> expected_floats_;
  uint64_t* read_sum_ = nullptr;  // pinned
  float* read_floats_ = nullptr;  // pinned
};

}  // namespace rekindle::gpu_jobs
