// A checkpoint call as its caller makes it: the faults that strike in the caller, then the door of the
// target.
#pragma once

#include "tests/gpu_sim/driver/door.h"

namespace rekindle::gpu_sim {

gpu::cuda::Result CallCheckpoint(pid_t pid, DoorRequest request, int* value);

}  // namespace rekindle::gpu_sim
