#include "gpu_state/hidden_uses.h"

#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "gpu_state/device_plan.h"

namespace rekindle::gpu {

HiddenUses FindHidden(absl::Span<const GpuDevice> devices, absl::Span<const GpuUse> uses,
                      absl::Span<const pid_t> pids, bool names_all) {
  HiddenUses hidden;
  const bool some_tell_nobody = absl::c_any_of(
      devices, [](const GpuDevice& device) { return device.memory_known && !device.uses_known; });
  for (pid_t pid : pids) {
    bool named = false, known = false;
    for (const GpuUse& use : uses) {
      if (use.pid != pid) continue;
      named = true;
      known |= use.bytes.has_value();
    }
    if (known) continue;
    const bool anywhere = named || !names_all;
    hidden.anywhere |= anywhere;
    if (anywhere || some_tell_nobody) hidden.pids.push_back(pid);
  }
  return hidden;
}

std::vector<GpuUse> MostOfHidden(const DeviceView& view, const HiddenUses& hidden) {
  std::vector<GpuUse> most;
  if (hidden.pids.empty()) return most;
  const std::map<std::string, uint64_t> known = BytesByDevice(view.uses);
  for (const GpuDevice& device : view.devices) {
    if (!hidden.MayBeOn(device)) continue;
    auto of_others = known.find(device.uuid);
    const uint64_t unused = device.free_bytes + (of_others == known.end() ? 0 : of_others->second);
    if (unused < device.total_bytes)
      most.push_back({hidden.pids[0], device.uuid, device.total_bytes - unused});
  }
  return most;
}

std::vector<GpuUse> UsesByWhatIsFree(const DeviceView& before, const DeviceView& after,
                                     absl::Span<const GpuUse> known, const HiddenUses& hidden) {
  std::vector<GpuUse> uses;
  if (hidden.pids.empty()) return uses;
  const std::map<std::string, uint64_t> left = BytesByDevice(known);
  for (const GpuDevice& device : after.devices) {
    auto was = absl::c_find_if(before.devices, [&](const GpuDevice& d) { return d.uuid == device.uuid; });
    if (was == before.devices.end() || !hidden.MayBeOn(*was) || !device.memory_known) continue;
    auto others = left.find(device.uuid);
    const uint64_t free_before = was->free_bytes + (others == left.end() ? 0 : others->second);
    if (device.free_bytes <= free_before) continue;
    uses.push_back({hidden.pids[0], device.uuid, device.free_bytes - free_before});
  }
  return uses;
}

}  // namespace rekindle::gpu
