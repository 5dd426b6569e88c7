// Memory within the limits of cgroups, of both versions: in a container, a Slurm step, a service with
// MemoryMax= the machine's free memory says little. Memory taken beyond a limit is no error that can be dealt
// with: the kernel kills for it, or (MemoryHigh=) hardly lets the processes run any more.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle {

// What the processes of one cgroup may still take. Thread-safe.
class MemoryRoom {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  // Of a group without a limit.
  MemoryRoom() = default;
  // `folder`: the group's, in the hierarchy of the memory controller. One that is no more has no limit.
  explicit MemoryRoom(UniqueFd folder) : folder_(std::move(folder)) {}

  // In bytes, as it is now: the limit less what is used, without the files that the kernel drops before it
  // kills.
  uint64_t Free() const;
  // For who fills up to it: Free() less a sixteenth of the limit, which is left to what the kernel needs for
  // the processes and to what they do themselves.
  uint64_t Left() const;

 private:
  UniqueFd folder_;
};

struct MemoryLimit {
  std::string folder;  // of the cgroup that has it
  uint64_t free = 0;   // see MemoryRoom
  uint64_t left = 0;
};

// The limits of the cgroup with this folder and of those that it is in, innermost first; those that have
// none are left out. Thread-safe.
std::vector<MemoryLimit> MemoryLimitsAbove(const std::string& folder);
// Of all cgroups of a process; none where they can't be seen. Thread-safe.
std::vector<MemoryLimit> MemoryLimitsOf(pid_t pid);

// AvailableMemoryBytes(), or what a limit of this process's own cgroups leaves free where that is less.
// Thread-safe.
absl::StatusOr<uint64_t> OwnAvailableMemoryBytes();

}  // namespace rekindle
