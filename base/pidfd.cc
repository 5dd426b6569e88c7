#include "base/pidfd.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
  const absl::Time deadline = absl::Now() + patience;
  for (;;) {
    // Rounded up, so that it does not spin at the end.
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)));
    pollfd entry{pidfd, POLLIN, 0};
    const int n = ::poll(
        &entry, 1,
        patience == absl::InfiniteDuration() ? -1 : static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
    if (n > 0) return (entry.revents & POLLIN) != 0;
    if (n < 0 && errno != EINTR) return false;
    if (n == 0 && left <= 0) return false;
  }
}

void KillAndAwaitExit(int pidfd) {
  if (SendSignal(pidfd, SIGKILL) || errno == ESRCH) AwaitExit(pidfd);
}

}  // namespace rekindle
