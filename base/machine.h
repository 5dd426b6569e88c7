// What this machine is, as far as an image depends on it. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rekindle {

struct Machine {
  std::string kernel;                     // uname -r
  std::string architecture;               // uname -m
  std::string boot_id;                    // changes with every boot
  std::vector<std::string> cpu_features;  // flags of /proc/cpuinfo, sorted
};
absl::StatusOr<Machine> ThisMachine();

// Memory that can be had without swapping, in bytes (MemAvailable).
absl::StatusOr<uint64_t> AvailableMemoryBytes();

}  // namespace rekindle
