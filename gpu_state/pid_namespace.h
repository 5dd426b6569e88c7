// Which PID namespace we are in: what a PID means to us is something else, or nothing, in another one.
#pragma once

#include <sys/types.h>

namespace rekindle::gpu {

// Its inode, which no other one that lives has. 0: not known (no /proc).
ino_t OwnPidNamespace();

// The machine's first one, whose PIDs NVIDIA's management library tells.
bool InFirstPidNamespace();

// Does a process that we see live in this one? From the first one all are seen.
bool AnyoneIsIn(ino_t name_space);

}  // namespace rekindle::gpu
