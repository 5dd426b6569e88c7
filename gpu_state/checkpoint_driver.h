// Who carries out checkpoints of CUDA processes: the driver's own functions, or NVIDIA's utility where the
// driver has none. Used by the helper process alone, since a call may never return.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpu_state/cuda_abi.h"
#include "gpu_state/process_state.h"

namespace rekindle::gpu {

// Thread-safe. Errors: NotFound: the process does not use CUDA or is gone; FailedPrecondition: not in that
// state; DeadlineExceeded: the lock's time-out; Unimplemented: the driver can't do this for this process;
// ResourceExhausted: not enough device memory.
class CheckpointDriver {
 public:
  virtual ~CheckpointDriver() = default;

  virtual int version() const = 0;        // as cuDriverGetVersion says: 13000
  virtual std::string means() const = 0;  // "libcuda.so.1", "/usr/bin/cuda-checkpoint"

  virtual absl::StatusOr<ProcessState> State(pid_t pid) = 0;
  // The thread of the process in which the driver does its part, as the process names it.
  virtual absl::StatusOr<pid_t> RestoreThread(pid_t pid) = 0;
  virtual absl::Status Lock(pid_t pid, absl::Duration timeout) = 0;
  virtual absl::Status Checkpoint(pid_t pid) = 0;
  // `pairs` empty: onto the same GPUs.
  virtual absl::Status Restore(pid_t pid, absl::Span<const cuda::GpuPair> pairs) = 0;
  virtual absl::Status Unlock(pid_t pid) = 0;
};

// Initialises the driver, which takes seconds on a large machine and needs no GPU memory. NotFound: there is
// no libcuda.so.1, or no GPU; Unimplemented: it is too old to have these functions (driver 570 brought them).
absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenDriverApi();

// NVIDIA's `cuda-checkpoint`, found in PATH. NotFound, or Unimplemented when it knows no --action (driver 555
// brought that).
absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenCheckpointUtility();

// The first of these that works.
absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenCheckpointDriver();

}  // namespace rekindle::gpu
