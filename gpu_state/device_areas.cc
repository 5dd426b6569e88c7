#include "gpu_state/device_areas.h"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"

namespace rekindle::gpu {

std::vector<DeviceArea> DeviceAreasOf(pid_t pid) {
  constexpr char kDeviceFiles[] = "/dev/nvidia";
  std::vector<DeviceArea> areas;
  const std::string maps = ReadFile(absl::StrCat("/proc/", pid, "/maps")).value_or("");
  for (const absl::string_view line : absl::StrSplit(maps, '\n')) {
    uint64_t start = 0, end = 0;
    if (!absl::StrContains(line, kDeviceFiles) ||
        std::sscanf(std::string(line).c_str(), "%" SCNx64 "-%" SCNx64, &start, &end) != 2) {
      continue;
    }
    if (!areas.empty() && areas.back().address + areas.back().bytes == start) {
      areas.back().bytes += end - start;
    } else {
      areas.push_back({start, end - start});
    }
  }
  return areas;
}

}  // namespace rekindle::gpu
