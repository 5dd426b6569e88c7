// Jobs among other mounts than ours that CRIU can't take an image of.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle::ckpt {

// Of a tree whose PIDs are ours: CRIU looks at it from outside, and takes its mounts for some that it has
// made. Unimplemented: they are a container's, or the machine's while we are in a container. Thread-safe.
absl::Status CheckMounts(pid_t root);

// Where a part of a file system is mounted (a file or folder from outside, as container engines do it) of
// which the whole is mounted nowhere below `mountinfo`; the first such place, empty: there is none. The mount
// of / does not count.
std::string MountFromOutside(absl::string_view mountinfo);

}  // namespace rekindle::ckpt
