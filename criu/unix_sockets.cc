#include "criu/unix_sockets.h"

#include <sys/socket.h>

#include <utility>

#include "base/status.h"
#include "criu/image_records.h"
#include "criu/images.pb.h"

namespace rekindle::criu {
namespace {

constexpr uint32_t kOutsideTheJob = 1;  // USK_EXTERN
constexpr uint32_t kConnected = 1;      // TCP_ESTABLISHED, of Unix sockets too

// As bind_unix_sk() of CRIU has it.
bool IsBound(const pb::UnixSocket& socket) {
  if (socket.name().empty() || socket.name()[0] == '\0') return false;  // none, or an abstract one
  if ((socket.own_flags() & kOutsideTheJob) != 0) return false;
  return socket.type() == SOCK_DGRAM || socket.state() != kConnected;
}

}  // namespace

absl::StatusOr<std::vector<NamedUnixSocket>> NamedUnixSockets(absl::string_view files_content) {
  std::vector<NamedUnixSocket> sockets;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    const pb::UnixSocket& socket = entry.unix_socket();
    if (!entry.has_unix_socket() || !IsBound(socket)) return;
    // Programs may count a zero at its end.
    NamedUnixSocket named{socket.name().substr(0, socket.name().find('\0')), socket.folder(),
                          socket.deleted()};
    if (named.name[0] == '/') named.folder.clear();
    sockets.push_back(std::move(named));
  }));
  return sockets;
}

}  // namespace rekindle::criu
