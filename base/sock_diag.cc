#include "base/sock_diag.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <memory>

#include "base/status.h"

namespace rekindle {
namespace {

constexpr char kAskingForSockets[] = "asking the kernel for sockets";
constexpr size_t kAnswerBytes = size_t{64} << 10;

}  // namespace

UniqueFd MakeSockDiag() {
  return UniqueFd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
}

absl::Status SendSockDiag(int socket, uint16_t type, uint16_t flags, absl::string_view request) {
  nlmsghdr header{};
  header.nlmsg_len = static_cast<uint32_t>(sizeof header + request.size());
  header.nlmsg_type = type;
  header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(request.data()), request.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (::sendmsg(socket, &message, 0) < 0) return ErrnoStatus(errno, kAskingForSockets);
  return absl::OkStatus();
}

absl::Status DumpSockets(int socket, absl::string_view request,
                         absl::FunctionRef<void(absl::string_view message)> each) {
  RK_RETURN_IF_ERROR(SendSockDiag(socket, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request));
  const std::unique_ptr<char[]> buffer(new char[kAnswerBytes]);
  nlmsghdr header;
  for (;;) {
    const ssize_t n = ::recv(socket, buffer.get(), kAnswerBytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, kAskingForSockets);
    absl::string_view left(buffer.get(), static_cast<size_t>(n));
    while (left.size() >= sizeof header) {
      memcpy(&header, left.data(), sizeof header);
      if (header.nlmsg_len < sizeof header || header.nlmsg_len > left.size()) break;
      const absl::string_view content = left.substr(sizeof header, header.nlmsg_len - sizeof header);
      if (header.nlmsg_type == NLMSG_DONE) return absl::OkStatus();
      if (header.nlmsg_type == NLMSG_ERROR) {
        nlmsgerr error;
        return ErrnoStatus(TakeMessage(content, &error) ? -error.error : EIO, kAskingForSockets);
      }
      if (header.nlmsg_type == SOCK_DIAG_BY_FAMILY) each(content);
      left.remove_prefix(std::min(left.size(), size_t{NLMSG_ALIGN(header.nlmsg_len)}));
    }
  }
}

}  // namespace rekindle
