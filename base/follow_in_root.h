// Where the names of another process lead, by their symbolic links too (open_in_root.h follows none).
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace rekindle {

// What has the absolute name `path` where `root` (a descriptor) is the root folder: a descriptor by O_PATH
// and `flags`, such as O_DIRECTORY and O_NOFOLLOW. Symbolic links are followed as for a process that has that
// root folder, so that they never lead out of it; those of /proc are not. Not valid: errno tells why.
// Thread-safe.
UniqueFd FollowInRoot(int root, const std::string& path, int flags);

// openat(2) for what a user names: the links of /proc, which lead to what this process has open, are not
// followed, nor does it leave anything open across an exec or become a terminal's owner. Not valid: errno.
// Thread-safe.
UniqueFd OpenPlain(int folder, const std::string& path, int flags);

}  // namespace rekindle
