// For the files that define the functions of the CUDA driver API. Their names, parameters and meaning are
// those of cuda.h; what the simulated driver does not have is not there, so that a job which needs it fails
// to find it.
#pragma once

#include "gpu_state/cuda_abi.h"
#include "tests/gpu_sim/driver/process.h"

#define GPU_SIM_API extern "C" __attribute__((visibility("default"))) rekindle::gpu::cuda::Result

namespace rekindle::gpu_sim {

// The calling thread's context; null if it has none, or one that was destroyed.
std::shared_ptr<Context> CurrentContext(Process& process);
void SetCurrentContext(const Context* context);

// Queues work in the stream of this handle (null: the current context's own), after what the CUDA rules put
// before it. The work's result becomes the context's error.
gpu::cuda::Result Queue(Process& process, void* stream, std::function<gpu::cuda::Result()> work);
// Waits until the current context's null stream and all streams ordered with it are idle.
gpu::cuda::Result WaitForNullStream(Process& process);
std::shared_ptr<Stream> StreamOf(Process& process, const std::shared_ptr<Context>& context, void* handle);

}  // namespace rekindle::gpu_sim
