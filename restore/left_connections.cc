#include "restore/left_connections.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"
#include "restore/socket_diag.h"

namespace rekindle::restore {

namespace {

absl::StatusOr<std::string> FileTableOf(const store::ImageReader& image) {
  return image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, "files.img"));
}

}  // namespace

absl::Status FreePorts(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string files, FileTableOf(image));
  RK_ASSIGN_OR_RETURN(const std::set<uint16_t> ports, criu::TcpPorts(files));
  if (ports.empty()) return absl::OkStatus();
  absl::StatusOr<SocketDiag> sockets = SocketDiag::Open(0);
  if (!sockets.ok()) return absl::OkStatus();
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
