#include "restore/gpu_record.h"

namespace rekindle::restore {

gpu::GpuRecord FromProto(const v1::GpuState& state) {
  gpu::GpuRecord record;
  record.cuda_version = state.cuda_version();
  record.driver = state.driver();
  record.pids.assign(state.pids().begin(), state.pids().end());
  for (const v1::GpuOfImage& device : state.devices()) {
    record.devices.push_back({device.uuid(), device.model(), device.total_bytes(), 0, false});
  }
  for (const v1::GpuUseOfImage& use : state.uses()) {
    gpu::GpuUse entry{use.pid(), use.uuid(), std::nullopt};
    if (use.has_bytes()) entry.bytes = use.bytes();
    record.uses.push_back(std::move(entry));
  }
  return record;
}

}  // namespace rekindle::restore
