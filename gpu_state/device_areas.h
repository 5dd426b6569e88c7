// Where memory of NVIDIA devices is mapped in a process. While that is out, nothing there says so.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace rekindle::gpu {

struct DeviceArea {
  uint64_t address = 0, bytes = 0;
  bool operator==(const DeviceArea&) const = default;
};

// In ascending order; those that touch are one. Empty also where the process has gone.
std::vector<DeviceArea> DeviceAreasOf(pid_t pid);

using DeviceAreas = std::map<pid_t, std::vector<DeviceArea>>;

}  // namespace rekindle::gpu
