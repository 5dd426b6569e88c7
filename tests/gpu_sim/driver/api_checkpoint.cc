// The checkpoint functions, as their caller sees them.
#include <cstring>

#include "tests/gpu_sim/driver/api.h"
#include "tests/gpu_sim/driver/checkpoint_call.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

Result ApiThere() {
  const Result usable = Process::Get().Usable();
  if (usable != gpu::cuda::kSuccess) return usable;
  Reply reply;
  if (!AskOnce({.op = Op::kHello}, "", &reply, nullptr)) return gpu::cuda::kOperatingSystem;
  const bool there = reply.settings.driver_version >= gpu::cuda::kFirstVersionWithCheckpointApi;
  return there ? gpu::cuda::kSuccess : gpu::cuda::kNotSupported;
}

bool AllZero(const void* bytes, size_t count) {
  const char* each = static_cast<const char*>(bytes);
  for (size_t i = 0; i < count; ++i) {
    if (each[i] != 0) return false;
  }
  return true;
}

Result CallApi(int pid, const DoorRequest& request, int* value) {
  const Result there = ApiThere();
  return there == gpu::cuda::kSuccess ? CallCheckpoint(pid, request, value) : there;
}

}  // namespace
}  // namespace rekindle::gpu_sim

using namespace rekindle::gpu_sim;
namespace cuda = rekindle::gpu::cuda;

GPU_SIM_API cuCheckpointProcessGetState(int pid, cuda::ProcessState* state) {
  if (state == nullptr) return cuda::kInvalidValue;
  int value = 0;
  const cuda::Result result = CallApi(pid, {.call = Call::kState}, &value);
  if (result == cuda::kSuccess) *state = static_cast<cuda::ProcessState>(value);
  return result;
}

GPU_SIM_API cuCheckpointProcessGetRestoreThreadId(int pid, int* thread) {
  if (thread == nullptr) return cuda::kInvalidValue;
  int value = 0;
  const cuda::Result result = CallApi(pid, {.call = Call::kRestoreThread}, &value);
  if (result == cuda::kSuccess) *thread = value;
  return result;
}

GPU_SIM_API cuCheckpointProcessLock(int pid, cuda::LockArgs* args) {
  DoorRequest request{.call = Call::kLock};
  if (args != nullptr) {
    if (args->reserved0 != 0 || !AllZero(args->reserved1, sizeof(args->reserved1)))
      return cuda::kInvalidValue;
    request.timeout_ms = args->timeout_ms;
  }
  int value;
  return CallApi(pid, request, &value);
}

GPU_SIM_API cuCheckpointProcessCheckpoint(int pid, cuda::CheckpointArgs* args) {
  if (args != nullptr && !AllZero(args, sizeof(*args))) return cuda::kInvalidValue;
  int value;
  return CallApi(pid, {.call = Call::kCheckpoint}, &value);
}

GPU_SIM_API cuCheckpointProcessRestore(int pid, cuda::RestoreArgs* args) {
  DoorRequest request{.call = Call::kRestore};
  if (args != nullptr) {
    if (args->reserved1 != 0 || !AllZero(args->reserved0, sizeof(args->reserved0)) ||
        args->pair_count > kMaxGpus || (args->pairs == nullptr) != (args->pair_count == 0)) {
      return cuda::kInvalidValue;
    }
    request.pair_count = args->pair_count;
    std::memcpy(request.pairs, args->pairs, args->pair_count * sizeof(cuda::GpuPair));
  }
  int value;
  return CallApi(pid, request, &value);
}

GPU_SIM_API cuCheckpointProcessUnlock(int pid, cuda::UnlockArgs* args) {
  if (args != nullptr && !AllZero(args, sizeof(*args))) return cuda::kInvalidValue;
  int value;
  return CallApi(pid, {.call = Call::kUnlock}, &value);
}

// The way of the cuda-checkpoint utility, which is older than the functions above.
GPU_SIM_API rekindle_gpu_sim_checkpoint(int call, int pid, unsigned timeout_ms, const cuda::GpuPair* pairs,
                                        unsigned pair_count, int* value) {
  const cuda::Result usable = Process::Get().Usable();
  if (usable != cuda::kSuccess) return usable;
  if (pair_count > kMaxGpus) return cuda::kInvalidValue;
  DoorRequest request{.call = static_cast<Call>(call), .timeout_ms = timeout_ms, .pair_count = pair_count};
  if (pair_count > 0) std::memcpy(request.pairs, pairs, pair_count * sizeof(cuda::GpuPair));
  return CallCheckpoint(pid, request, value);
}
