#include "daemon/socket_owner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"
#include "restore/socket_diag.h"

namespace rekindle::daemon {
namespace {

absl::Status FromElsewhere() {
  return absl::UnauthenticatedError(
      "the connection comes from another machine or network namespace, and nobody vouches for it: connect "
      "from this one, or through a proxy that does the checking");
}

bool IsMapped(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// An IPv4 address that an IPv6 socket sees.
sockaddr_storage Unmapped(const sockaddr_storage& address) {
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof four.sin_addr);
  sockaddr_storage plain{};
  std::memcpy(&plain, &four, sizeof four);
  return plain;
}

// An IPv4 address as an IPv6 socket that has it sees it.
sockaddr_storage Mapped(const sockaddr_storage& address) {
  const auto& four = reinterpret_cast<const sockaddr_in&>(address);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = four.sin_port;
  six.sin6_addr.s6_addr[10] = six.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(six.sin6_addr.s6_addr + 12, &four.sin_addr, sizeof four.sin_addr);
  sockaddr_storage mapped{};
  std::memcpy(&mapped, &six, sizeof six);
  return mapped;
}

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

absl::Status Closed() {
  return absl::UnauthenticatedError(
      "whoever has connected has closed the connection, so that nobody can tell who it was: keep it open "
      "until the answer has come");
}

criu::TcpConnection Ends(const sockaddr_storage& local, const sockaddr_storage& remote) {
  criu::TcpConnection ends;
  ends.family = local.ss_family;
  auto take = [](const sockaddr_storage& address, std::array<uint32_t, 4>& words, uint16_t& port) {
    if (address.ss_family == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(address);
      words[0] = in.sin_addr.s_addr;
      port = ntohs(in.sin_port);
    } else {
      const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
      std::memcpy(words.data(), &in.sin6_addr, sizeof words);
      port = ntohs(in.sin6_port);
    }
  };
  take(local, ends.local, ends.local_port);
  take(remote, ends.remote, ends.remote_port);
  return ends;
}

// An address that means something with an interface only, which the kernel's index wants to know.
bool IsOfOneLink(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Whose the other end is by the kernel's index. Nothing: it has none, or may not be asked.
std::optional<absl::StatusOr<uid_t>> OwnerByIndex(const sockaddr_storage& local,
                                                  const sockaddr_storage& remote) {
  if (IsOfOneLink(local) || IsOfOneLink(remote)) return std::nullopt;
  const auto other = restore::FindTcp(Ends(remote, local));
  if (!other.ok()) return std::nullopt;
  // Nobody has it any more; the kernel says 0 then, as if it were root's.
  if (other->has_value()) {
    if ((*other)->inode == 0) return Closed();
    return (*other)->user;
  }
  // There is none, if it knows our own, which there is.
  const auto own = restore::FindTcp(Ends(local, remote));
  if (!own.ok() || !own->has_value()) return std::nullopt;
  return FromElsewhere();
}

// Of the socket with these addresses, from a list of all, which takes as long as there are many. Nothing:
// there is none. Unauthenticated: nobody has it any more.
absl::StatusOr<std::optional<uid_t>> OwnerIn(const char* path, const std::string& local,
                                             const std::string& remote) {
  auto table = ReadFile(path);
  if (absl::IsNotFound(table.status())) return std::nullopt;
  RK_RETURN_IF_ERROR(table.status());
  for (absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (fields.size() < 10 || fields[1] != local || fields[2] != remote) continue;
    uid_t owner = 0;
    uint64_t inode = 0;
    if (!absl::SimpleAtoi(fields[7], &owner) || !absl::SimpleAtoi(fields[9], &inode) || inode == 0) {
      return Closed();
    }
    return owner;
  }
  return std::nullopt;
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
  if (auto owner = OwnerByIndex(local, remote)) return *std::move(owner);
  constexpr char kFour[] = "/proc/self/net/tcp", kSix[] = "/proc/self/net/tcp6";
  std::optional<uid_t> owner;
  RK_ASSIGN_OR_RETURN(owner, OwnerIn(six ? kSix : kFour, InTable(remote), InTable(local)));
  // Either end of an IPv4 connection may be an IPv6 socket, as all those of Java and .NET are.
  if (!owner.has_value() && !six) {
    RK_ASSIGN_OR_RETURN(owner, OwnerIn(kSix, InTable(Mapped(remote)), InTable(Mapped(local))));
  } else if (!owner.has_value() && IsMapped(remote) && IsMapped(local)) {
    RK_ASSIGN_OR_RETURN(owner, OwnerIn(kFour, InTable(Unmapped(remote)), InTable(Unmapped(local))));
  }
  if (owner.has_value()) return *owner;
  return FromElsewhere();
}

}  // namespace rekindle::daemon
