// Claims on process numbers, for what several processes of Rekindle could begin at once with the same job.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace rekindle {

// Claims `number` of a namespace of PIDs, 0: our own, else its inode, in `file`, an open file that all who
// claim such numbers open anew. False: somebody else has it (errno EAGAIN or EACCES), or it can't be claimed.
// It is given up when `file` and its copies are closed, at the latest by the kernel, when who has it dies.
// Thread-safe.
bool ClaimNumber(const UniqueFd& file, pid_t number, uint32_t pid_namespace = 0);

}  // namespace rekindle
