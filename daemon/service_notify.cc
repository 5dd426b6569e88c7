#include "daemon/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

absl::Status NotifyServiceManager(absl::string_view state) {
  const char* name = ::getenv("NOTIFY_SOCKET");
  if (!name || !*name) return absl::OkStatus();
  absl::string_view path = name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) {
    return absl::InvalidArgumentError(
        absl::StrCat("NOTIFY_SOCKET is '", path, "', which is no socket's address"));
  }
  path.copy(address.sun_path, path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (!socket.valid() || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                                  reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return ErrnoStatus(errno, absl::StrCat("telling the service manager at ", path));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
