// What this machine is, as far as an image depends on it. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

struct Machine {
  std::string kernel;                     // uname -r
  std::string architecture;               // uname -m
  std::string boot_id;                    // changes with every boot
  std::vector<std::string> cpu_features;  // flags of /proc/cpuinfo, sorted
};
absl::StatusOr<Machine> ThisMachine();

// How the message of a refusal begins where only another kernel, CRIU, processor or GPU driver may have the
// image.
inline constexpr char kDoesNotFit[] = "the image does not fit this machine";

// Marks an error as one of this machine, which lacks what every image of a job needs, until somebody mends
// it: CRIU, a GPU, its driver. The mark stays with the status (Annotate).
absl::Status LackOfMachine(const absl::Status& status);
bool IsLackOfMachine(const absl::Status& status);

// As in Machine. Read once: later there may be no descriptor for it. Empty where the kernel does not tell.
std::string ThisBootId();

// What tells this machine from others with which it may share a store, over its restarts: /etc/machine-id.
// Empty where there is none, as in many containers.
std::string ThisMachineId();
// Did another machine write this as its id? Empty, from one without: perhaps, but nobody can tell.
bool IsOtherMachine(absl::string_view id);
// For people: its name in its network.
std::string ThisHostName();

// Memory that can be had without swapping, in bytes (MemAvailable); where the kernel promises no more than it
// has (vm.overcommit_memory is 2), what it still promises if that is less.
absl::StatusOr<uint64_t> AvailableMemoryBytes();
// The same, of the contents of /proc/meminfo and /proc/sys/vm/overcommit_memory.
absl::StatusOr<uint64_t> AvailableMemoryIn(absl::string_view meminfo, absl::string_view overcommit);

}  // namespace rekindle
