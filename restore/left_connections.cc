#include "restore/left_connections.h"

#include <algorithm>
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
#include "rekindle/v1/image_layout.h"
#include "restore/socket_diag.h"

namespace rekindle::restore {

namespace {

absl::StatusOr<std::string> FileTableOf(const store::ImageReader& image) {
  return image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, "files.img"));
}

// In the network namespace of the calling thread.
uint16_t FirstPortForAll() {
  constexpr uint16_t kUsual = 1024;
  const auto text = ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  int first = 0;
  const bool known = text.ok() && absl::SimpleAtoi(*text, &first) && first >= 0 && first <= UINT16_MAX;
  return known ? static_cast<uint16_t>(first) : kUsual;
}

}  // namespace

std::set<uint16_t> KeepTheirOwn(std::set<uint16_t> ports, uid_t user, uint16_t first_for_all,
                                const std::vector<TcpSocket>& there) {
  if (user == 0) return ports;
  std::erase_if(ports, [&](uint16_t port) { return port < first_for_all; });
  for (const TcpSocket& socket : there) {
    if (socket.inode != 0 && socket.user != user) ports.erase(socket.ends.local_port);
  }
  return ports;
}

absl::Status FreePorts(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, FileTableOf(image));
  RK_ASSIGN_OR_RETURN(std::set<uint16_t> ports, criu::TcpPorts(files));
  if (ports.empty()) return absl::OkStatus();
  absl::StatusOr<SocketDiag> sockets = SocketDiag::Open(0);
  if (!sockets.ok()) return absl::OkStatus();
  if (const uid_t owner = image.info().owner; owner != 0) {
    const auto there = sockets->Tcp(*ports.begin(), *ports.rbegin());
    if (!there.ok()) return absl::OkStatus();
    ports = KeepTheirOwn(std::move(ports), owner, FirstPortForAll(), *there);
    if (ports.empty()) return absl::OkStatus();
  }
  const auto over = sockets->TimeWaiting(*ports.begin(), *ports.rbegin());
  for (const TcpSocket& socket : over.value_or(std::vector<TcpSocket>())) {
    // Where that can't be done, CRIU says that the port is taken, and it is tried again.
    if (ports.contains(socket.ends.local_port)) sockets->Destroy(socket).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status EndLeftConnections(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, FileTableOf(image));
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
