#include "daemon/exit_of_others.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstdint>

namespace rekindle::daemon {
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

}  // namespace

ExitState ExitOfStranger(int ended, std::atomic<bool>* unknown) {
  // Until it has been reaped (POLLHUP) there is no exit status to be had.
  constexpr int kPatienceMs = 2000;
  pollfd reaped{ended, 0, 0};
  ::poll(&reaped, 1, kPatienceMs);
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  ExitState exit;
  if (::ioctl(ended, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) {
    unknown->store(true);
    exit.code = 255;
    return exit;
  }
  if (WIFSIGNALED(info.exit_code)) {
    exit.signal = WTERMSIG(info.exit_code);
  } else {
    exit.code = WEXITSTATUS(info.exit_code);
  }
  return exit;
}

}  // namespace rekindle::daemon
