// What an image says of its job's GPUs, in the manifest and in memory.
#pragma once

#include "gpu_state/job_mover.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

v1::GpuState ToProto(const gpu::GpuRecord& record);

}  // namespace rekindle::ckpt
