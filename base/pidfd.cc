#include "base/pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/wait_status.h"

namespace rekindle {
namespace {

// linux/pidfd.h of 6.15, which Debian 12's headers do not have.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroupid;
  uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr uint64_t kPidfdInfoExit = 1u << 3;

// 0: it has been reaped, or has no number here.
pid_t NumberOf(int pidfd) {
  pid_t pid = 0;
  const absl::StatusOr<std::string> info = ReadFile(absl::StrCat("/proc/self/fdinfo/", pidfd));
  return info.ok() && absl::SimpleAtoi(StatusField(*info, "Pid"), &pid) && pid > 0 ? pid : 0;
}

// Nothing: it is none (any more), or we may not know.
std::optional<ExitState> ExitOfZombie(int pidfd) {
  const pid_t pid = NumberOf(pidfd);
  if (pid == 0) return std::nullopt;
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat.ok() || stat->state != 'Z') return std::nullopt;
  // To those who may not trace it, all zombies have exit status 0. To others this link, of no program any
  // more, leads nowhere.
  char target[1];
  if (::readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), target, sizeof target) >= 0 || errno != ENOENT)
    return std::nullopt;
  // Not reaped in between: the number was its own all the time.
  if (!SendSignal(pidfd, 0)) return std::nullopt;
  return ExitStateOf(stat->exit_status);
}

}  // namespace

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

std::optional<ExitState> ExitOfEnded(int pidfd) {
  if (const std::optional<ExitState> exit = ExitOfZombie(pidfd)) return exit;
  // Until it has been reaped (POLLHUP) the kernel has no exit status for those who may not trace it.
  constexpr int kPatienceMs = 2000;
  pollfd reaped{pidfd, 0, 0};
  ::poll(&reaped, 1, kPatienceMs);
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) return std::nullopt;
  return ExitStateOf(info.exit_code);
}

void KillAndAwaitExit(int pidfd) {
  if (SendSignal(pidfd, SIGKILL) || errno == ESRCH) AwaitExit(pidfd);
}

}  // namespace rekindle
