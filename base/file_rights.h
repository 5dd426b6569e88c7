// Working on files with the rights of a user, for a service that runs as root.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"

namespace rekindle {

// Of a folder: others may enter and not list.
inline constexpr mode_t kThroughOnly = 0711;

struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary

  friend bool operator==(const Owner&, const Owner&) = default;
};

// Runs `work` on a thread of its own whose file accesses are `owner`'s: what it makes is theirs, what they
// may not open it can't, their disk quota holds, and it has none of root's capabilities. Unlike one that
// takes on the user's identity, the thread can't be signalled by the user, which would end the whole service:
// so it may take long. Directly, when the service's user is the owner; PermissionDenied when it is another
// one and not root. Thread-safe. Paths that begin in /proc still show this process: open with
// RESOLVE_NO_MAGICLINKS what the user names.
absl::Status WithFileRightsOf(const Owner& owner, const std::function<absl::Status()>& work);

}  // namespace rekindle
