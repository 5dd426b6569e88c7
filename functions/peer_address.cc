#include "functions/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace rekindle::functions {
namespace {

std::string Text(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& ip = reinterpret_cast<const sockaddr_in&>(address);
    if (!::inet_ntop(AF_INET, &ip.sin_addr, text, sizeof text)) return "";
    return absl::StrCat(text, ":", ntohs(ip.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& ip = reinterpret_cast<const sockaddr_in6&>(address);
    if (!::inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof text)) return "";
    return absl::StrCat("[", text, "]:", ntohs(ip.sin6_port));
  }
  return "";
}

}  // namespace

Peer PeerOf(int socket) {
  Peer peer;
  peer.socket = socket;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    peer.unix_socket = address.ss_family == AF_UNIX;
    peer.local_address = Text(address);
  }
  size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    peer.remote_address = Text(address);
  return peer;
}

}  // namespace rekindle::functions
