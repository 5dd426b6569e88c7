// Onto which GPUs a job's state goes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

// Old UUID to new UUID, for each GPU that the state was on.
using DevicePairs = std::vector<std::pair<std::string, std::string>>;

// "GPU-…=GPU-…,…". InvalidArgument.
absl::StatusOr<DevicePairs> ParseDevicePairs(absl::string_view text);

// Bytes of `uses` by GPU; unknown ones count as 0.
std::map<std::string, uint64_t> BytesByDevice(absl::Span<const GpuUse> uses);

// All of them; unknown ones count as 0.
uint64_t KnownBytes(absl::Span<const GpuUse> uses);

// Those of `uses` that are of `pids`.
std::vector<GpuUse> UsesOf(absl::Span<const GpuUse> uses, absl::Span<const pid_t> pids);

// `recorded`: the GPUs the state was on; `uses`: what the job had on them; `present`: this machine's. With
// `wanted`, these pairs and no others; else each GPU that is still there is kept, if they all are, and
// otherwise replaced by one of the same model with room. No pairs: the same GPUs.
// FailedPrecondition: a GPU is missing or of another model; ResourceExhausted: there is no room on one, and
// who has it.
absl::StatusOr<DevicePairs> PlanDevices(absl::Span<const GpuDevice> recorded, absl::Span<const GpuUse> uses,
                                        absl::Span<const GpuDevice> present,
                                        absl::Span<const GpuUse> present_uses, const DevicePairs& wanted);

// ResourceExhausted when a GPU of `needed` has not that much free.
absl::Status CheckRoom(const std::map<std::string, uint64_t>& needed, absl::Span<const GpuDevice> present,
                       absl::Span<const GpuUse> present_uses);

// `pairs` and one for each other GPU of the machine, which stays what it is, or takes the place of one whose
// state goes there: some drivers want each GPU named that a process sees. Empty where there is no such plan.
DevicePairs WithOtherDevices(const DevicePairs& pairs, absl::Span<const GpuDevice> present);

}  // namespace rekindle::gpu
