// Memory within the limits of cgroups: in a container, a Slurm step, a service with MemoryMax= the machine's
// free memory says little.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rekindle {

// What the kernel can still give to who is in the cgroups `folders` and those around them before a limit is
// reached and it kills somebody: what is used counts, without the files that it can drop. UINT64_MAX: there
// is no limit. Both versions of cgroups. Thread-safe.
uint64_t RoomInCgroups(const std::vector<std::string>& folders);

// AvailableMemoryBytes(), or the room in this process's own cgroups where that is less. Thread-safe.
absl::StatusOr<uint64_t> OwnAvailableMemoryBytes();

}  // namespace rekindle
