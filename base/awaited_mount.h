// File systems that belong somewhere and are not there.
#pragma once

#include <string>

namespace rekindle {

// The mount point at or above `path` that fstab(5) names and at which nothing is mounted, the lowest if there
// are several; empty: there is none. What is made in `path` now would be hidden as soon as something is
// mounted there. `path` may not exist yet. The files are those of the system, or a test's. Thread-safe.
std::string AwaitedMountPoint(const std::string& path, const char* fstab = "/etc/fstab",
                              const char* mounts = "/proc/self/mounts");

}  // namespace rekindle
