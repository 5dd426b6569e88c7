#include "base/packet_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/unix_socket.h"

namespace rekindle {
namespace {

// More than the file a path names: connecting processes that nobody has accepted yet.
constexpr int kBacklog = 128;

absl::StatusOr<UniqueFd> MakeSocket() {
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made.valid()) return ErrnoStatus(errno, "making a socket");
  return made;
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> PacketSocketPair() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "making a pair of sockets");
  }
  return std::make_pair(UniqueFd(pair[0]), UniqueFd(pair[1]));
}

absl::StatusOr<UniqueFd> ListenForPackets(const std::string& path) {
  RK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddressOf(path));
  RK_ASSIGN_OR_RETURN(UniqueFd listener, MakeSocket());
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno == EADDRINUSE ? EEXIST : errno, absl::StrCat("making the socket ", path));
  }
  if (::listen(listener.get(), kBacklog) != 0) return ErrnoStatus(errno, absl::StrCat("listening on ", path));
  return listener;
}

absl::StatusOr<UniqueFd> ConnectForPackets(const std::string& path, absl::Duration patience) {
  RK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddressOf(path));
  RK_ASSIGN_OR_RETURN(UniqueFd socket, MakeSocket());
  // What is sent later waits as ever.
  const auto wait_for = [&socket](timeval time) {
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  };
  if (patience != absl::InfiniteDuration()) wait_for(absl::ToTimeval(patience));
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN)
      return absl::DeadlineExceededError(absl::StrCat("connecting to ", path, ": nobody takes connections"));
    const int error = errno == ECONNREFUSED ? ENOENT : errno;
    return ErrnoStatus(error, absl::StrCat("connecting to ", path));
  }
  wait_for({});
  return socket;
}

absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> descriptors, int flags) {
  if (bytes.size() > kMaxPacketBytes || descriptors.size() > kMaxPacketDescriptors) {
    return absl::InternalError(absl::StrCat("a packet of ", bytes.size(), " bytes and ", descriptors.size(),
                                            " descriptors is too large"));
  }
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(header), descriptors.data(), size);
  }
  while (::sendmsg(socket, &message, flags | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::ResourceExhaustedError("the other side takes no packets");
    if (errno == EPIPE || errno == ECONNRESET) return absl::UnavailableError("the other side has gone");
    return ErrnoStatus(errno, "sending a packet");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Packet>> ReceivePacket(int socket, int flags) {
  // Kept, and not cleared: packets are short, as a rule.
  static thread_local const std::unique_ptr<char[]> buffer(new char[kMaxPacketBytes]);
  Packet packet;
  iovec part{buffer.get(), kMaxPacketBytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  while ((n = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return std::nullopt;
    if (errno == EAGAIN) return absl::UnavailableError("no packet is there");
    return ErrnoStatus(errno, "receiving a packet");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      packet.descriptors.emplace_back(fd);
    }
  }
  if (n == 0 && packet.descriptors.empty()) return std::nullopt;
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::ResourceExhaustedError(
        "a packet came incomplete: this process has too many descriptors open, or the packet is too large");
  }
  packet.bytes.assign(buffer.get(), static_cast<size_t>(n));
  return packet;
}

}  // namespace rekindle
