// Fresh memory of a process that stands still, made by several threads of ours: each page is made and cleared
// at its first touch, and the NVIDIA driver, which has but one thread in a process, would wait for each.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace rekindle::gpu {

// Of which the kernel makes huge pages, where it has any: touches one byte of each block of that size. Where
// that gives a small page only (memory is in pieces), the block's others as well. Writes what is there:
// zeros, so the process must not use it before this returns, which it does soon where `stop` becomes true.
// What can't be made is left to the process. On the processors and memory nodes of its `thread`.
void PopulateFresh(pid_t pid, pid_t thread, uint64_t address, uint64_t bytes, const std::atomic<bool>& stop);

}  // namespace rekindle::gpu
