// Onto which GPUs a job's state goes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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

// Beyond which a move of them counts as hung in the driver. `context_bytes`: what it takes on each GPU beside
// them.
absl::Duration MoveMayTake(absl::Span<const GpuUse> uses, uint64_t context_bytes);

// Those of `uses` that are of `pids`.
std::vector<GpuUse> UsesOf(absl::Span<const GpuUse> uses, absl::Span<const pid_t> pids);

// `recorded`: the GPUs the state was on; `uses`: what the job had on them; `present`: this machine's. With
// `wanted`, these pairs and no others; else each GPU that is still there is kept, if they all are, and
// otherwise replaced by one of the same model with room. One that does not answer is as good as not there. No
// pairs: the same GPUs. FailedPrecondition: a GPU is missing, does not answer or is of another model;
// ResourceExhausted: there is no room on one, and who has it.
absl::StatusOr<DevicePairs> PlanDevices(absl::Span<const GpuDevice> recorded, absl::Span<const GpuUse> uses,
                                        const DeviceView& present, const DevicePairs& wanted);

// ResourceExhausted when a GPU of `needed` has not that much free; where that is not told, the driver has the
// last word. FailedPrecondition: one is not there, or does not answer.
absl::Status CheckRoom(const std::map<std::string, uint64_t>& needed, const DeviceView& present);

// Of a GPU that does not answer: that nothing can be moved onto it, and what helps.
absl::Status DoesNotAnswer(const GpuDevice& device);

// For people: the GPUs that do not answer, and what helps.
struct LostGpus {
  std::string what, cure;
};
// Nothing: all answer.
std::optional<LostGpus> FindLost(const DeviceView& present);
// For an error of the driver's whose cause that may be; empty: all answer.
std::string HintAtLost(const DeviceView& present);

// `pairs` and one for each other GPU of the machine, which stays what it is, or takes the place of one whose
// state goes there: some drivers want each GPU named that a process sees. Empty where there is no such plan.
DevicePairs WithOtherDevices(const DevicePairs& pairs, absl::Span<const GpuDevice> present);

}  // namespace rekindle::gpu
