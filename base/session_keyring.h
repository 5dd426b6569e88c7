// The kernel's keys (keyrings(7)) that a process has by its session.
#pragma once

#include <linux/keyctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace rekindle {

// Gives the calling thread, and what it starts, a new session keyring: whoever has ours may read each key in
// it, as any user. To be called before a change of user: it counts against the quota of who calls, and a user
// has few. 0, or the error; where there are no keys, or none for us (a container), there is nothing to do.
// Safe between fork and exec.
inline int LeaveSessionKeyring() {
  if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) >= 0) return 0;
  return errno == ENOSYS || errno == EPERM ? 0 : errno;
}

}  // namespace rekindle
