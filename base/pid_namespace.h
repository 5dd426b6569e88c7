// Whether the numbers of processes mean the same to another process as to this one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace rekindle {

// Is it in the PID namespace of this process? Nothing: it has ended, or we may not look.
std::optional<bool> IsInOurPidNamespace(pid_t pid);

// The number of ours, which no other has while it lives. 0: the kernel does not tell.
uint64_t OurPidNamespace();

}  // namespace rekindle
