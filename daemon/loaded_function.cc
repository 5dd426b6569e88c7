#include "daemon/loaded_function.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/process_stat.h"
#include "base/socket_descriptors.h"
#include "base/unique_fd.h"
#include "ckpt/temporary_files.h"

namespace rekindle::daemon {
namespace {

int Option(int socket, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

std::string AddressText(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    return absl::StrCat(text, ":", ntohs(four.sin_port));
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  return absl::StrCat("[", text, "]:", ntohs(six.sin6_port));
}

// `has_peer`: `peer` is set.
std::optional<std::string> InternetPeer(int socket, bool has_peer, const sockaddr_storage& peer) {
  if (has_peer) return AddressText(peer);
  tcp_info info{};
  socklen_t size = sizeof info;
  if (Option(socket, SO_TYPE) != SOCK_STREAM ||
      ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state != TCP_SYN_SENT) {
    return std::nullopt;
  }
  return "an address that does not answer yet";
}

std::optional<std::string> UnixPeer(int socket, const sockaddr_storage& peer, socklen_t size,
                                    const std::vector<pid_t>& processes) {
  if (Option(socket, SO_TYPE) == SOCK_DGRAM) return std::nullopt;
  ucred who{};
  socklen_t who_size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &who_size) != 0) return std::nullopt;
  if (std::find(processes.begin(), processes.end(), who.pid) != processes.end()) return std::nullopt;
  const auto& name = reinterpret_cast<const sockaddr_un&>(peer);
  if (size <= offsetof(sockaddr_un, sun_path) || name.sun_path[0] == '\0') return "a Unix socket";
  return absl::StrCat("the Unix socket ", absl::CHexEscape(name.sun_path));
}

}  // namespace

std::optional<std::string> ConnectionToOthers(const std::vector<pid_t>& processes) {
  std::optional<std::string> found;
  for (const pid_t pid : processes) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process.valid()) continue;
    ForEachSocketOf(pid, [&](int number, uint64_t) {
      const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
      sockaddr_storage peer{};
      socklen_t size = sizeof peer - 1;  // a Unix socket's name may fill it
      const bool has_peer =
          socket.valid() && ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
      const int domain = Option(socket.get(), SO_DOMAIN);
      if (domain == AF_INET || domain == AF_INET6) {
        found = InternetPeer(socket.get(), has_peer, peer);
      } else if (domain == AF_UNIX && has_peer) {
        found = UnixPeer(socket.get(), peer, size, processes);
      }
      return !found;
    });
    if (found) break;
  }
  return found;
}

absl::Status CheckLoadedFunction(pid_t root, bool has_after_restore) {
  const std::vector<pid_t> processes = ProcessTree(root);
  const absl::Status may =
      ckpt::CheckTemporaryFiles(absl::StrCat("/proc/", root, "/root"), processes, ckpt::kFunctionTemporary);
  if (!may.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        may.message(),
        ", so the function has no image of its own: make that in the handler, or remove it in what is "
        "registered with register_before_snapshot (docs/functions.md)"));
  }
  if (has_after_restore) return absl::OkStatus();
  const std::optional<std::string> connection = ConnectionToOthers(processes);
  if (!connection) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "once loaded it is connected to ", *connection,
      ", which no copy would be, so it has no image of its own: connect in the handler, or again in what is "
      "registered with register_after_restore (docs/functions.md)"));
}

}  // namespace rekindle::daemon
