// What processes have on GPUs of which the management library does not tell it: in a container it knows them
// by other PIDs, on some machines it tells no bytes, and of some GPUs no processes.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/types/span.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

struct HiddenUses {
  std::vector<pid_t> pids;  // of which it is not told what they have
  bool anywhere = false;    // on whichever GPU; else only on those of which it is not told who uses them

  bool MayBeOn(const GpuDevice& device) const {
    return device.memory_known && (anywhere || !device.uses_known);
  }
};

// Of `pids`, of which `uses` is all that is known, on `devices`. `names_all`: the library knows all processes
// of this PID namespace as we do.
HiddenUses FindHidden(absl::Span<const GpuDevice> devices, absl::Span<const GpuUse> uses,
                      absl::Span<const pid_t> pids, bool names_all);

// The most that they can have: what is used and nobody's who is known.
std::vector<GpuUse> MostOfHidden(const DeviceView& view, const HiddenUses& hidden);

// What they had: as much as is free since they left beside what is known of others that left. As if all of it
// was the first one's, which serves for sums.
std::vector<GpuUse> UsesByWhatIsFree(const DeviceView& before, const DeviceView& after,
                                     absl::Span<const GpuUse> known, const HiddenUses& hidden);

}  // namespace rekindle::gpu
