// How much memory the processes of a cgroup may still take. Memory put into a process beyond its limit is no
// error that can be dealt with: the kernel kills for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace rekindle::restore {

// Thread-safe.
class MemoryRoom {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  // Of a group without a limit.
  MemoryRoom() = default;
  // `folder`: the group's, in the hierarchy of the memory controller (v1 or v2).
  explicit MemoryRoom(UniqueFd folder) : folder_(std::move(folder)) {}

  // In bytes, as it is now; a part is left to what the kernel needs for the processes and to what they do
  // themselves.
  uint64_t Left() const;

 private:
  UniqueFd folder_;
};

struct MemoryLimit {
  std::string folder;  // of the cgroup that has it
  uint64_t left = 0;   // see MemoryRoom
};

// The limits of the cgroup with this folder and of those that it is in, innermost first; those that have
// none are left out.
std::vector<MemoryLimit> MemoryLimitsAbove(const std::string& folder);
// Of all cgroups of a process; none where they can't be seen.
std::vector<MemoryLimit> MemoryLimitsOf(pid_t pid);

}  // namespace rekindle::restore
