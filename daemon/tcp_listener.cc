#include "daemon/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/descriptor_limit.h"
#include "base/host_port.h"
#include "base/status.h"
#include "daemon/bind_patience.h"

namespace rekindle::daemon {
namespace {

constexpr int kBacklogOfTcp = 512, kTriesOfPort = 8;
constexpr size_t kFewestOverTcp = 8, kMostOverTcp = 4096;
// As many as a few nodes with their commands have, where the limit of descriptors is an ordinary one.
constexpr size_t kManyOverTcp = 256, kOrdinaryLimit = 1024;

// Returns an error of errno.
int ListenOnOne(const sockaddr* address, socklen_t size, bool both_families, UniqueFd* listens) {
  UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, only_v6 = both_families ? 0 : 1;
  if (!socket.valid() ||
      (address->sa_family == AF_INET6 &&
       ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6) != 0) ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      // Those that are accepted have it from this one.
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      ::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), kBacklogOfTcp) != 0) {
    return errno;
  }
  *listens = std::move(socket);
  return 0;
}

void SetPort(sockaddr_storage& address, int port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
}

int PortIn(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return PortIn(address);
}

absl::Status NotListening(int error, const std::string& address) {
  const absl::Status why = ErrnoStatus(error, absl::StrCat("--listen: listening on ", address));
  return absl::UnavailableError(
      absl::StrCat(why.message(), ": choose another address",
                   error == EADDRINUSE ? ", or end what has this one ('ss -ltnp' shows it)" : ""));
}

// Of its end that isn't ours; of IPv6 the network ("2001:db8::/64"), of which each machine has all addresses.
std::string AddressOfPeer(int connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = "";
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&address), &size) != 0) return host;
  in6_addr& v6 = reinterpret_cast<sockaddr_in6&>(address).sin6_addr;
  const bool of_network =
      address.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6) && !IN6_IS_ADDR_LOOPBACK(&v6);
  if (of_network) memset(v6.s6_addr + 8, 0, 8);
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                NI_NUMERICHOST);
  absl::string_view name = host;
  absl::ConsumePrefix(&name, "::ffff:");  // one of IPv4, to a socket of both
  return absl::StrCat(name, of_network ? "/64" : "");
}

// `*chosen`: an address is in use with the port that the kernel has chosen for the first.
absl::StatusOr<TcpSockets> ListenOnAll(const addrinfo* found, bool everywhere, const std::string& address,
                                       bool* chosen) {
  TcpSockets tcp;
  std::vector<sockaddr_storage> had;
  int failure = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    sockaddr_storage at{};
    std::copy_n(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen, reinterpret_cast<char*>(&at));
    const sockaddr_storage asked = at;
    // All with the port that the kernel has chosen for the first.
    if (tcp.port != 0) SetPort(at, tcp.port);
    // A name may have one twice.
    if (std::any_of(had.begin(), had.end(),
                    [&](const sockaddr_storage& other) { return memcmp(&other, &at, sizeof at) == 0; }))
      continue;
    UniqueFd socket;
    const auto is_in_use = [&] {
      failure = ListenOnOne(reinterpret_cast<const sockaddr*>(&at), one->ai_addrlen, everywhere, &socket);
      return failure == EADDRINUSE;
    };
    *chosen = PortIn(asked) == 0 && tcp.port != 0;
    if (*chosen ? is_in_use() : !AwaitAddress(is_in_use)) return NotListening(failure, address);
    if (failure != 0) continue;  // of a family that the machine does not have
    if (tcp.port == 0) tcp.port = PortOf(socket.get());
    SetPort(at, tcp.port);
    had.push_back(at);
    tcp.sockets.push_back(std::move(socket));
  }
  if (tcp.sockets.empty() && everywhere) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_port;
    UniqueFd socket;
    AwaitAddress([&] {
      failure = ListenOnOne(reinterpret_cast<const sockaddr*>(&any), sizeof any, false, &socket);
      return failure == EADDRINUSE;
    });
    if (failure == 0) {
      tcp.port = PortOf(socket.get());
      tcp.sockets.push_back(std::move(socket));
    }
  }
  if (tcp.sockets.empty()) return NotListening(failure, address);
  return tcp;
}

}  // namespace

absl::StatusOr<TcpSockets> ListenOnTcp(const std::string& address) {
  RK_RETURN_IF_ERROR(Annotate(CheckHostPort(address, AddressUse::kListen), "--listen"));
  const auto [host, port] = SplitHostPort(address);
  const bool everywhere = host.empty() || host == "0.0.0.0" || host == "::";
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | (everywhere ? AI_NUMERICHOST : 0);
  const int unknown = ::getaddrinfo(everywhere ? "::" : host.c_str(), port.c_str(), &hints, &found);
  if (unknown != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", address, ": ", ::gai_strerror(unknown)));
  }
  const auto free = absl::MakeCleanup([found] { ::freeaddrinfo(found); });
  for (int tried = 1;; ++tried) {
    bool chosen = false;
    absl::StatusOr<TcpSockets> tcp = ListenOnAll(found, everywhere, address, &chosen);
    // Another may have the port that the kernel has chosen for the first, at one of the others.
    if (tcp.ok() || !chosen || tried == kTriesOfPort) return tcp;
  }
}

size_t MostTcpConnections() {
  const size_t limit = DescriptorLimit();
  return std::clamp<size_t>(limit / 8, limit >= kOrdinaryLimit ? kManyOverTcp : kFewestOverTcp, kMostOverTcp);
}

void TcpConnections::ForgetClosed() {
  std::erase_if(known_, [](const auto& entry) { return !entry.second.connection.IsStillOpen(); });
}

absl::Status TcpConnections::Admit(int connection) {
  const std::optional<OpenDescriptor> opened = OpenDescriptor::Of(connection);
  if (!opened) return ErrnoStatus(errno, "looking at a connection");
  known_.erase(connection);  // of one that was closed
  std::string address = AddressOfPeer(connection);
  const auto has_room = [&] {
    const size_t of_address = static_cast<size_t>(std::count_if(
        known_.begin(), known_.end(), [&](const auto& entry) { return entry.second.address == address; }));
    return known_.size() < most_ && of_address < std::max<size_t>(1, most_ / 2);
  };
  if (!has_room()) {
    ForgetClosed();
    if (!has_room()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a connection from ", address, " is one too many: there may be ", most_,
          " over TCP, half of them from one address. If these are wanted, raise the daemon's limit of "
          "descriptors (LimitNOFILE=), else see who makes them ('ss -tnp')"));
    }
  }
  known_.emplace(connection, Known{*opened, std::move(address)});
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
