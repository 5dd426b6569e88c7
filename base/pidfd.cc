#include "base/pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"

namespace rekindle {

absl::StatusOr<UniqueFd> OpenProcess(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.valid()) return pidfd;
  const int error = errno;
  // Of a number that is a group's, a session's or a thread's alone Linux says EINVAL, and from 6.16 on ESRCH
  // and ENOENT.
  if (error == ESRCH || error == EINVAL || error == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  return ErrnoStatus(error, absl::StrCat("opening process ", pid));
}

bool SendSignal(int pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
}

bool AwaitExit(int pidfd, absl::Duration patience) {
  if (pidfd < 0) return false;
  const Deadline deadline(patience);
  for (;;) {
    const int left_ms = deadline.left_ms();
    pollfd entry{pidfd, POLLIN, 0};
    const int n = ::poll(&entry, 1, left_ms);
    if (n > 0) return (entry.revents & POLLIN) != 0;
    if (n < 0 && errno != EINTR) return false;
    if (n == 0 && left_ms == 0) return false;
  }
}

void KillAndAwaitExit(int pidfd) {
  if (SendSignal(pidfd, SIGKILL) || errno == ESRCH) AwaitExit(pidfd);
}

}  // namespace rekindle
