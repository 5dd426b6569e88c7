// Where device state enters a capture and a restore. CRIU knows nothing of device memory: before the freeze
// it must have become host memory of the job, and after the thaw it must go back.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace rekindle::gpu {

// Thread-compatible: one capture or restore uses it at a time.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // Does this process use a device whose state the step carries? (An open /dev/nvidia* alone does not mean
  // so.)
  virtual bool UsesDevice(pid_t pid) const = 0;

  // Before the freeze: device memory of all `pids` becomes host memory. On failure all are as they were,
  // running and unlocked.
  virtual absl::Status BeforeFreeze(absl::Span<const pid_t> pids) = 0;

  // After the thaw, whether the dump succeeded or not: puts device memory back and unlocks. Called exactly
  // once after each successful BeforeFreeze, unless the job is to end.
  virtual absl::Status AfterThaw(absl::Span<const pid_t> pids) = 0;

  // After a restore, once the tree runs: puts device memory back, verifies the state of every one of `pids`,
  // unlocks.
  virtual absl::Status AfterRestore(absl::Span<const pid_t> pids) = 0;
};

}  // namespace rekindle::gpu
