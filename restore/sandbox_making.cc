#include "restore/sandbox_making.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/status.h"
#include "restore/sandbox_init.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

constexpr int kFirstOwn = kInitDirectory + 1;

void CloseAllBut(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 3;
  for (int fd : kept) {
    if (static_cast<unsigned>(fd) > first) ::syscall(SYS_close_range, first, fd - 1, 0);
    first = static_cast<unsigned>(fd) + 1;
  }
  ::syscall(SYS_close_range, first, ~0U, 0);
}

}  // namespace

absl::StatusOr<pid_t> CloneInto(uint64_t namespaces, int* pidfd) {
  clone_args arguments{};
  arguments.flags = namespaces | CLONE_PIDFD;
  arguments.pidfd = reinterpret_cast<uintptr_t>(pidfd);
  arguments.exit_signal = SIGCHLD;
  const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid < 0) {
    return ErrnoStatus(errno, errno == ENOSPC ? "making a sandbox: the limit of namespaces is reached "
                                                "(/proc/sys/user/max_*_namespaces)"
                                              : "making a sandbox");
  }
  return static_cast<pid_t>(pid);
}

absl::StatusOr<MadeSandbox> MakeSandbox(const nlohmann::json& request, std::vector<UniqueFd>& descriptors) {
  if (descriptors.size() != 2) return absl::InternalError("making a sandbox: its sockets are missing");
  InitSetup setup;
  setup.control = std::move(descriptors[0]);
  setup.keeper = std::move(descriptors[1]);
  setup.directory = request.at("directory");
  const std::string network = request.at("network");
  setup.loopback = network == "own";
  const uint64_t namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS |
                              (network != "host" ? uint64_t{CLONE_NEWNET} : 0);
  int pidfd = -1;
  RK_ASSIGN_OR_RETURN(pid_t pid, CloneInto(namespaces, &pidfd));
  if (pid == 0) {
    // The maker's other sockets must not stay open in it.
    setup.control.Reset(::fcntl(setup.control.get(), F_DUPFD_CLOEXEC, kFirstOwn));
    setup.keeper.Reset(::fcntl(setup.keeper.get(), F_DUPFD_CLOEXEC, kFirstOwn));
    CloseAllBut({setup.control.get(), setup.keeper.get()});
    ::signal(SIGCHLD, SIG_DFL);
    ::setsid();
    RunSandboxInit(std::move(setup));
  }
  return MadeSandbox{pid, UniqueFd(pidfd)};
}

}  // namespace rekindle::restore
