// The limits of CPU time that a copy or an instance may have.
#pragma once

namespace rekindle {

// In CPUs. The kernel takes no quota below a millisecond in a tenth of a second.
inline constexpr double kLeastCpus = 0.01, kMostCpus = 10000;

// 0 is no limit. False for NaN and the infinite.
constexpr bool IsCpuLimit(double cpus) { return cpus == 0 || (cpus >= kLeastCpus && cpus <= kMostCpus); }

}  // namespace rekindle
