#include "daemon/runtime_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/socket_owner.h"

namespace rekindle::daemon {
namespace {

constexpr int kWaiting = 16;

}  // namespace

absl::StatusOr<RuntimePort> RuntimePort::Open(uid_t user) {
  RuntimePort port;
  port.listener.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!port.listener.valid() ||
      ::bind(port.listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(port.listener.get(), kWaiting) != 0 ||
      ::getsockname(port.listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "opening a port for a custom runtime");
  }
  port.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  port.may_connect = [user](int connection) {
    auto owner = OwnerOfOtherEnd(connection);
    return owner.ok() && (*owner == user || *owner == 0);
  };
  return port;
}

}  // namespace rekindle::daemon
