// Which GPUs this machine has, how full they are, and who has memory on them: NVIDIA's management library,
// which answers without a CUDA context. Used by the helper process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

// Thread-safe.
class DeviceInventory {
 public:
  virtual ~DeviceInventory() = default;
  virtual std::string driver_version() const = 0;  // "580.95.05"
  // A GPU that does not answer keeps nobody from the others. PIDs are those of this process's PID namespace,
  // or of the host's where the driver knows no better.
  virtual absl::StatusOr<DeviceView> Look() = 0;
};

// NotFound: there is no libnvidia-ml.so.1.
absl::StatusOr<std::unique_ptr<DeviceInventory>> OpenDeviceInventory();

}  // namespace rekindle::gpu
