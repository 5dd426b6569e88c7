// Folders as another process knows them: what its names lead to.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace rekindle {

// The folder that has the absolute name `path` where `root` (a descriptor) is the root folder, by O_PATH.
// Symbolic links are followed as for a process that has that root folder, so that they never lead out of it;
// those of /proc are not. Not valid: errno tells why. Thread-safe.
UniqueFd OpenFolderInRoot(int root, const std::string& path);

}  // namespace rekindle
