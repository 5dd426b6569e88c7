#include "daemon/lost_clients.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// In the second half of the patience.
constexpr int kProbes = 4;

bool ListensOn(int fd, int port) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) return false;
  sockaddr_storage address{};
  size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port) == port;
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port) == port;
  return false;
}

bool Set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

}  // namespace

absl::Status NoticeLostClients(int port, absl::Duration patience) {
  const int seconds = static_cast<int>(absl::ToInt64Seconds(patience));
  // gRPC keeps its sockets to itself; what is accepted has the options of what listens.
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory("/proc/self/fd"));
  bool found = false;
  for (const std::string& name : names) {
    int fd = -1;
    if (!absl::SimpleAtoi(name, &fd) || !ListensOn(fd, port)) continue;
    found = true;
    // What was sent and is not acknowledged is sent again for a quarter of an hour, and meanwhile nothing
    // else is probed: that has a limit of its own.
    if (!Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) || !Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds / 2) ||
        !Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds / 2 / kProbes) ||
        !Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes) ||
        !Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000)) {
      return ErrnoStatus(errno, absl::StrCat("having connections to port ", port, " probed"));
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat("nothing listens on port ", port));
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
