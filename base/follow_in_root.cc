#include "base/follow_in_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace rekindle {

namespace {

UniqueFd Open(int folder, const std::string& path, int flags, uint64_t resolve) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = resolve | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
}

}  // namespace

UniqueFd FollowInRoot(int root, const std::string& path, int flags) {
  return Open(root, path, flags | O_PATH, RESOLVE_IN_ROOT);
}

UniqueFd OpenPlain(int folder, const std::string& path, int flags) {
  // An O_NOCTTY beside O_PATH is refused.
  return Open(folder, path, (flags & O_PATH) != 0 ? flags : flags | O_NOCTTY, 0);
}

}  // namespace rekindle
