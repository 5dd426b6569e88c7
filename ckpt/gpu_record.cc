#include "ckpt/gpu_record.h"

namespace rekindle::ckpt {

v1::GpuState ToProto(const gpu::GpuRecord& record) {
  v1::GpuState state;
  state.set_cuda_version(record.cuda_version);
  state.set_driver(record.driver);
  for (pid_t pid : record.pids) state.add_pids(pid);
  for (const gpu::GpuDevice& device : record.devices) {
    v1::GpuOfImage* entry = state.add_devices();
    entry->set_uuid(device.uuid);
    entry->set_model(device.model);
    entry->set_total_bytes(device.total_bytes);
  }
  for (const gpu::GpuUse& use : record.uses) {
    v1::GpuUseOfImage* entry = state.add_uses();
    entry->set_pid(use.pid);
    entry->set_uuid(use.uuid);
    if (use.bytes) entry->set_bytes(*use.bytes);
  }
  return state;
}

}  // namespace rekindle::ckpt
