#include "base/network_namespace.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle {

absl::Status InNetworkOf(pid_t process, absl::FunctionRef<absl::Status()> work) {
  RK_ASSIGN_OR_RETURN(const UniqueFd network, OpenFile(absl::StrCat("/proc/", process, "/ns/net"), O_RDONLY));
  return CatchNoMoreThreads([&] {
    absl::Status status;
    // It ends with its place: one that could not come back would be in a wrong one for ever.
    std::thread([&] {
      status = ::setns(network.get(), CLONE_NEWNET) == 0
                   ? work()
                   : ErrnoStatus(errno, absl::StrCat("entering the network namespace of process ", process));
    }).join();
    return status;
  });
}

absl::StatusOr<UniqueFd> NewNetwork(bool loopback) {
  absl::StatusOr<UniqueFd> network = UniqueFd();
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
    std::thread([&] {
      if (::unshare(CLONE_NEWNET) != 0) {
        const int error = errno;
        network = ErrnoStatus(error, absl::StrCat("making a process a network of its own",
                                                  error == EPERM    ? ", which needs CAP_SYS_ADMIN"
                                                  : error == ENOSPC ? ", of which there are as many as the "
                                                                      "sysctl user.max_net_namespaces allows"
                                                                    : ""));
        return;
      }
      if (absl::Status up = loopback ? BringUpLoopback() : absl::OkStatus(); !up.ok()) {
        network = std::move(up);
        return;
      }
      network = OpenFile("/proc/thread-self/ns/net", O_RDONLY);
    }).join();
    return absl::OkStatus();
  }));
  return network;
}

absl::Status BringUpLoopback() {
  UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  request.ifr_name[0] = 'l';
  request.ifr_name[1] = 'o';
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0)
    return ErrnoStatus(errno, "bringing up a sandbox's loopback interface");
  return absl::OkStatus();
}

}  // namespace rekindle
