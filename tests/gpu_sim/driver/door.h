// How a checkpoint call of any process reaches the target: a socket pair that the target alone holds both
// ends of. A thread of the target, its restore thread, reads one end. A caller takes a copy of the other
// (pidfd_getfd), whose number stands in a page at a fixed address in the target. So nothing has a name that
// could be taken, namespaces do not matter, and CRIU carries all of it.
#pragma once

#include <functional>

#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

struct DoorRequest {
  Call call = Call::kState;
  uint32_t timeout_ms = 0;
  uint32_t pair_count = 0;
  gpu::cuda::GpuPair pairs[kMaxGpus] = {};
  Fault fault = {};
};

struct DoorReply {
  gpu::cuda::Result result = gpu::cuda::kSuccess;
  int32_t value = 0;  // kState: the state; kRestoreThread: the thread's ID as the target itself sees it
};

// In the target. The handler runs in the restore thread, one request after the other; `caller` hangs up when
// the caller dies. False: no thread, or the fixed address is taken.
using DoorHandler = std::function<DoorReply(const DoorRequest&, int caller)>;
bool OpenDoor(DoorHandler handler);
// In a forked child of the target: the door is not its own.
void ForgetDoor();

// In the caller. kInvalidValue: no process of that ID, or none that uses the simulated driver. kNotPermitted:
// not ours to look into. kOperatingSystem: it died.
gpu::cuda::Result KnockAt(pid_t pid, const DoorRequest& request, DoorReply* reply);

}  // namespace rekindle::gpu_sim
