#include "daemon/socket_owner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// As /proc/net/tcp and tcp6 write it: words of the address in the machine's order.
std::string InTable(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    return absl::StrFormat("%08X:%04X", in.sin_addr.s_addr, ntohs(in.sin_port));
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
  uint32_t words[4];
  std::memcpy(words, &in.sin6_addr, sizeof words);
  return absl::StrFormat("%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
                         ntohs(in.sin6_port));
}

}  // namespace

absl::StatusOr<uid_t> OwnerOfOtherEnd(int connection) {
  sockaddr_storage local{}, remote{};
  socklen_t size = sizeof local, remote_size = sizeof remote;
  if (::getsockname(connection, reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      ::getpeername(connection, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) {
    return ErrnoStatus(errno, "finding out who has connected");
  }
  const bool six = local.ss_family == AF_INET6;
  if (!six && local.ss_family != AF_INET) return absl::UnauthenticatedError("this is no TCP connection");
  const std::string from = InTable(remote), to = InTable(local);
  RK_ASSIGN_OR_RETURN(std::string table, ReadFile(six ? "/proc/self/net/tcp6" : "/proc/self/net/tcp"));
  for (absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uid_t owner = 0;
    if (fields.size() < 8 || fields[1] != from || fields[2] != to) continue;
    if (absl::SimpleAtoi(fields[7], &owner)) return owner;
  }
  return absl::UnauthenticatedError(
      "the connection comes from another machine or network namespace, and nobody vouches for it: connect "
      "from this "
      "one, or through a proxy that does the checking");
}

}  // namespace rekindle::daemon
