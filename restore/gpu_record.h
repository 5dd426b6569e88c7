// What an image says of its job's GPUs.
#pragma once

#include "gpu_state/job_mover.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

gpu::GpuRecord FromProto(const v1::GpuState& state);

}  // namespace rekindle::restore
