#include "restore/left_connections.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "restore/criu_files.h"
#include "restore/socket_diag.h"

namespace rekindle::restore {

namespace {

// In the network namespace of the calling thread.
uint16_t FirstPortForAll() {
  constexpr uint16_t kUsual = 1024;
  const auto text = ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  int first = 0;
  const bool known = text.ok() && absl::SimpleAtoi(*text, &first) && first >= 0 && first <= UINT16_MAX;
  return known ? static_cast<uint16_t>(first) : kUsual;
}

// With the addresses of IPv4 as such, where a socket of IPv6 has one.
std::pair<int, std::array<uint32_t, 4>> LocalAddress(const criu::TcpConnection& end) {
  const std::array<uint32_t, 4>& address = end.local;
  if (end.family == AF_INET6 && address[0] == 0 && address[1] == 0 && address[2] == htonl(0xffff))
    return {AF_INET, {address[3]}};
  return {end.family, address};
}

bool IsAnyAddress(const criu::TcpConnection& end) {
  return LocalAddress(end).second == std::array<uint32_t, 4>{};
}

bool HasLowerPort(const criu::TcpConnection& a, const criu::TcpConnection& b) {
  return a.local_port < b.local_port;
}

// Each once: all connections that a server took have its address.
void SortByPort(std::vector<criu::TcpConnection>* ends) {
  const auto key = [](const criu::TcpConnection& end) {
    return std::make_pair(end.local_port, LocalAddress(end));
  };
  std::sort(ends->begin(), ends->end(),
            [&](const criu::TcpConnection& a, const criu::TcpConnection& b) { return key(a) < key(b); });
  ends->erase(std::unique(ends->begin(), ends->end(),
                          [&](const criu::TcpConnection& a, const criu::TcpConnection& b) {
                            return key(a) == key(b);
                          }),
              ends->end());
}

// `sorted`: by SortByPort.
bool CollidesWithAny(const criu::TcpConnection& end, const std::vector<criu::TcpConnection>& sorted) {
  const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), end, HasLowerPort);
  return std::any_of(first, last, [&](const criu::TcpConnection& other) { return Collide(end, other); });
}

}  // namespace

bool Collide(const criu::TcpConnection& one, const criu::TcpConnection& other) {
  return one.local_port == other.local_port &&
         (IsAnyAddress(one) || IsAnyAddress(other) || LocalAddress(one) == LocalAddress(other));
}

std::vector<criu::TcpConnection> KeepTheirOwn(std::vector<criu::TcpConnection> ends, uid_t user,
                                              uint16_t first_for_all, const std::vector<TcpSocket>& there) {
  if (user == 0) return ends;
  std::vector<criu::TcpConnection> of_others;
  for (const TcpSocket& socket : there) {
    if (socket.inode != 0 && socket.user != user) of_others.push_back(socket.ends);
  }
  SortByPort(&of_others);
  std::erase_if(ends, [&](const criu::TcpConnection& end) {
    return end.local_port < first_for_all || CollidesWithAny(end, of_others);
  });
  return ends;
}

absl::Status FreePorts(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, ReadCriuFile(image, "files.img"));
  RK_ASSIGN_OR_RETURN(std::vector<criu::TcpConnection> ends, criu::TcpLocalEnds(files));
  SortByPort(&ends);
  if (ends.empty()) return absl::OkStatus();
  absl::StatusOr<SocketDiag> sockets = SocketDiag::Open(0);
  if (!sockets.ok()) return absl::OkStatus();
  const uint16_t first_port = ends.front().local_port, last_port = ends.back().local_port;
  if (const uid_t owner = image.info().owner; owner != 0) {
    const auto there = sockets->Tcp(first_port, last_port);
    if (!there.ok()) return absl::OkStatus();
    ends = KeepTheirOwn(std::move(ends), owner, FirstPortForAll(), *there);
    if (ends.empty()) return absl::OkStatus();
  }
  const auto over = sockets->TimeWaiting(first_port, last_port);
  for (const TcpSocket& socket : over.value_or(std::vector<TcpSocket>())) {
    // Where that can't be done, CRIU says that the port is taken, and it is tried again.
    if (CollidesWithAny(socket.ends, ends)) sockets->Destroy(socket).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status EndLeftConnections(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, ReadCriuFile(image, "files.img"));
  RK_ASSIGN_OR_RETURN(const std::vector<criu::TcpConnection> wanted, criu::TcpConnections(files));
  if (wanted.empty()) return absl::OkStatus();
  std::set<uint16_t> ports;
  for (const criu::TcpConnection& connection : wanted) ports.insert(connection.local_port);
  RK_ASSIGN_OR_RETURN(SocketDiag sockets, SocketDiag::Open(0));
  RK_ASSIGN_OR_RETURN(const std::vector<TcpSocket> there, sockets.Tcp(*ports.begin(), *ports.rbegin()));
  for (const TcpSocket& socket : there) {
    if (socket.listens || std::find(wanted.begin(), wanted.end(), socket.ends) == wanted.end()) continue;
    const absl::Status ended =
        socket.inode != 0 ? absl::AlreadyExistsError("a process has it") : sockets.Destroy(socket);
    if (ended.ok()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        kConnectionsInUse, ", and the place of ", criu::Describe(socket.ends), " is taken (", ended.message(),
        socket.inode != 0 ? "): end that process (`ss -tnp`)"
                          : "): the kernel still sends what the job had left there, and gives up after some "
                            "minutes",
        "; or restore with --tcp-close, without connections"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
