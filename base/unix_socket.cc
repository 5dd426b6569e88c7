#include "base/unix_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace rekindle {

absl::StatusOr<sockaddr_un> UnixAddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket ", path, ": its path is longer than the ", sizeof address.sun_path - 1,
                     " bytes a socket's may have; use a folder with a shorter name"));
  }
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path, int flags) {
  RK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddressOf(path));
  UniqueFd listener(
      ::socket(AF_UNIX, SOCK_CLOEXEC | flags | ((flags & SOCK_SEQPACKET) == 0 ? SOCK_STREAM : 0), 0));
  if (!listener.valid()) return ErrnoStatus(errno, absl::StrCat("making the socket ", path));
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    int error = errno == EADDRINUSE ? EEXIST : errno;
    return ErrnoStatus(error, absl::StrCat("making the socket ", path));
  }
  if (::listen(listener.get(), 1) != 0) {
    absl::Status status = ErrnoStatus(errno, absl::StrCat("listening on ", path));
    ::unlink(path.c_str());
    return status;
  }
  return listener;
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path, int flags) {
  RK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddressOf(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return ErrnoStatus(errno, absl::StrCat("connecting to the socket ", path));
  return socket;
}

std::string UnixSocketUri(absl::string_view path) {
  std::string uri = "unix://";
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/._~-", c)) {
      uri += c;
    } else {
      absl::StrAppendFormat(&uri, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return uri;
}

}  // namespace rekindle
