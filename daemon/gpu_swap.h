// Two jobs change places on a GPU.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/gpu_jobs.h"

namespace rekindle::daemon {

struct GpuSwapped {
  GpuMoved out, in;
  double park_seconds = 0, resume_seconds = 0;  // their sum is more than `seconds` where both went on at once
  double seconds = 0;
};

// Parks `out` and resumes `in`, both roots of jobs. Where there is room for `in` already both moves go on at
// the same time, since memory goes out of a GPU and into it over wires of their own; else one after the
// other. On failure both are as they were, or the error says what is not. `cancelled`: as for
// GpuJobs::Resume. Thread-safe.
absl::StatusOr<GpuSwapped> SwapOnGpu(GpuJobs& jobs, pid_t out, pid_t in, absl::Duration lock_timeout,
                                     const std::string& why, const std::function<bool()>& cancelled);

}  // namespace rekindle::daemon
