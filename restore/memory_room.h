// How much memory the processes of a cgroup may still take. Memory put into a process beyond its limit is no
// error that can be dealt with: the kernel kills for it.
#pragma once

#include <cstdint>
#include <utility>

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

}  // namespace rekindle::restore
