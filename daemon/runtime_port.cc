#include "daemon/runtime_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

constexpr int kWaiting = 16;

// As /proc/net/tcp writes it.
std::string InTable(const sockaddr_in& address) {
  return absl::StrFormat("%08X:%04X", address.sin_addr.s_addr, ntohs(address.sin_port));
}

bool BelongsTo(int connection, uid_t user) {
  sockaddr_in local{}, remote{};
  socklen_t size = sizeof local;
  if (::getsockname(connection, reinterpret_cast<sockaddr*>(&local), &size) != 0) return false;
  size = sizeof remote;
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&remote), &size) != 0) return false;
  auto table = ReadFile("/proc/self/net/tcp");
  if (!table.ok()) return false;
  const std::string from = InTable(remote), to = InTable(local);
  for (absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uid_t owner = 0;
    if (fields.size() < 8 || fields[1] != from || fields[2] != to) continue;
    return absl::SimpleAtoi(fields[7], &owner) && (owner == user || owner == 0);
  }
  return false;
}

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
  port.may_connect = [user](int connection) { return BelongsTo(connection, user); };
  return port;
}

}  // namespace rekindle::daemon
