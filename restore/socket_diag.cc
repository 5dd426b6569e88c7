#include "restore/socket_diag.h"

#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/network_namespace.h"
#include "base/sock_diag.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr char kAsking[] = "asking the kernel for sockets";

// The states of the kernel's sockets; <netinet/tcp.h> has them too, but not beside <linux/tcp.h>.
constexpr uint32_t kEstablished = 1, kTimeWait = 6, kClosed = 7, kListens = 10, kConnecting = 2,
                   kRequested = 3, kNewRequest = 12;
constexpr uint32_t Bit(uint32_t state) { return 1u << state; }
constexpr uint32_t kAllStates = (1u << 13) - 1;
// What has content, or can get some.
constexpr uint32_t kTcpStates = kAllStates & ~(Bit(0) | Bit(kTimeWait) | Bit(kClosed) | Bit(kConnecting) |
                                               Bit(kRequested) | Bit(kNewRequest));

uint64_t Cookie(const uint32_t (&halves)[2]) { return uint64_t{halves[1]} << 32 | halves[0]; }

bool ParseTcp(absl::string_view bytes, TcpSocket* out) {
  inet_diag_msg message;
  if (!TakeMessage(bytes, &message)) return false;
  out->cookie = Cookie(message.id.idiag_cookie);
  out->inode = message.idiag_inode;
  out->user = message.idiag_uid;
  out->listens = message.idiag_state == kListens;
  out->ends.family = message.idiag_family;
  std::copy_n(message.id.idiag_src, out->ends.local.size(), out->ends.local.begin());
  std::copy_n(message.id.idiag_dst, out->ends.remote.size(), out->ends.remote.begin());
  out->ends.local_port = ntohs(message.id.idiag_sport);
  out->ends.remote_port = ntohs(message.id.idiag_dport);
  // What it has in the place of a listening one means something else.
  if (out->listens) return true;
  bytes.remove_prefix(NLMSG_ALIGN(sizeof message));
  ForEachAttribute(bytes, [out](int type, absl::string_view content) {
    constexpr size_t kAt = offsetof(tcp_info, tcpi_bytes_sent);
    if (type != INET_DIAG_INFO || content.size() < kAt + sizeof out->bytes_sent) return;
    memcpy(&out->bytes_sent, content.data() + kAt, sizeof out->bytes_sent);
  });
  return true;
}

bool ParseUnix(absl::string_view bytes, UnixSocket* out) {
  unix_diag_msg message;
  if (!TakeMessage(bytes, &message)) return false;
  if (message.udiag_type != SOCK_STREAM && message.udiag_type != SOCK_SEQPACKET) return false;
  out->cookie = Cookie(message.udiag_cookie);
  out->inode = message.udiag_ino;
  out->listens = message.udiag_state == kListens;
  bytes.remove_prefix(NLMSG_ALIGN(sizeof message));
  ForEachAttribute(bytes, [out](int type, absl::string_view content) {
    if (type == UNIX_DIAG_NAME) out->name = std::string(content);
    if (type == UNIX_DIAG_RQLEN && content.size() >= sizeof(unix_diag_rqlen) && !out->listens) {
      unix_diag_rqlen queues;
      memcpy(&queues, content.data(), sizeof queues);
      out->unread = queues.udiag_wqueue > 0;
    }
    if (type == UNIX_DIAG_SHUTDOWN && !content.empty() && !out->listens) {
      constexpr char kBothWays = 3;
      out->peer_ended = content[0] == kBothWays;
    }
  });
  return !out->name.empty();
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakeSockets() {
  UniqueFd requests = MakeSockDiag();
  if (!requests.valid()) return ErrnoStatus(errno, kAsking);
  UniqueFd destroyed = MakeSockDiag();
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  bool told = destroyed.valid() &&
              ::bind(destroyed.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  for (int group : {SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY}) {
    told =
        told && ::setsockopt(destroyed.get(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) == 0;
  }
  if (!told) destroyed.Reset();
  return std::make_pair(std::move(requests), std::move(destroyed));
}

// Exactly the socket with these ends.
inet_diag_req_v2 RequestFor(const criu::TcpConnection& ends) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<uint8_t>(ends.family);
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = kAllStates;
  std::copy_n(ends.local.begin(), ends.local.size(), request.id.idiag_src);
  std::copy_n(ends.remote.begin(), ends.remote.size(), request.id.idiag_dst);
  request.id.idiag_sport = htons(ends.local_port);
  request.id.idiag_dport = htons(ends.remote_port);
  return request;
}

absl::string_view Bytes(const inet_diag_req_v2& request) {
  return {reinterpret_cast<const char*>(&request), sizeof request};
}

// The addresses of IPv4 that an IPv6 socket sees as its own kind of them.
criu::TcpConnection Unmapped(const criu::TcpConnection& ends) {
  auto mapped = [](const std::array<uint32_t, 4>& address) {
    return address[0] == 0 && address[1] == 0 && address[2] == htonl(0xffff);
  };
  if (ends.family != AF_INET6 || !mapped(ends.local) || !mapped(ends.remote)) return ends;
  return {AF_INET, {ends.local[3]}, {ends.remote[3]}, ends.local_port, ends.remote_port};
}

}  // namespace

absl::StatusOr<std::optional<TcpSocket>> FindTcp(const criu::TcpConnection& ends) {
  const UniqueFd asked = MakeSockDiag();
  if (!asked.valid()) return ErrnoStatus(errno, kAsking);
  const criu::TcpConnection wanted = Unmapped(ends);
  inet_diag_req_v2 request = RequestFor(wanted);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  RK_RETURN_IF_ERROR(SendSockDiag(asked.get(), SOCK_DIAG_BY_FAMILY, 0, Bytes(request)));
  alignas(nlmsghdr) std::array<char, 4096> answer;
  ssize_t n;
  do {
    n = ::recv(asked.get(), answer.data(), answer.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoStatus(errno, kAsking);
  const absl::string_view bytes(answer.data(), static_cast<size_t>(n));
  nlmsghdr header;
  if (!TakeMessage(bytes, &header)) return ErrnoStatus(EPROTO, kAsking);
  const absl::string_view content = bytes.substr(sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR) {
    nlmsgerr error;
    if (!TakeMessage(content, &error)) return ErrnoStatus(EPROTO, kAsking);
    if (error.error == -ENOENT) return std::nullopt;
    return ErrnoStatus(-error.error, kAsking);
  }
  TcpSocket found;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || !ParseTcp(content, &found)) {
    return ErrnoStatus(EPROTO, kAsking);
  }
  // Where there is no such connection the kernel gives one that listens there, which is somebody else's.
  if (found.listens || Unmapped(found.ends) != wanted) return std::nullopt;
  return found;
}

absl::StatusOr<SocketDiag> SocketDiag::Open(pid_t process) {
  absl::StatusOr<std::pair<UniqueFd, UniqueFd>> made = absl::InternalError("not made");
  if (process == 0) {
    made = MakeSockets();
  } else {
    RK_RETURN_IF_ERROR(InNetworkOf(process, [&made] {
      made = MakeSockets();
      return absl::OkStatus();
    }));
  }
  RK_RETURN_IF_ERROR(made.status());
  return SocketDiag(std::move(made->first), std::move(made->second));
}

absl::Status SocketDiag::Destroy(const TcpSocket& socket) {
  inet_diag_req_v2 request = RequestFor(socket.ends);
  request.id.idiag_cookie[0] = static_cast<uint32_t>(socket.cookie);
  request.id.idiag_cookie[1] = static_cast<uint32_t>(socket.cookie >> 32);
  RK_RETURN_IF_ERROR(SendSockDiag(requests_.get(), SOCK_DESTROY, NLM_F_ACK, Bytes(request)));
  alignas(nlmsghdr) std::array<char, 1024> answer;
  const ssize_t n = ::recv(requests_.get(), answer.data(), answer.size(), 0);
  nlmsghdr header;
  nlmsgerr error;
  const absl::string_view bytes(answer.data(), n < 0 ? 0 : static_cast<size_t>(n));
  if (!TakeMessage(bytes, &header) || header.nlmsg_type != NLMSG_ERROR ||
      !TakeMessage(bytes.substr(sizeof header), &error)) {
    return ErrnoStatus(n < 0 ? errno : EPROTO, "ending a connection");
  }
  // Gone by itself is as well.
  if (error.error == 0 || error.error == -ENOENT) return absl::OkStatus();
  if (error.error == -EOPNOTSUPP) {
    return absl::UnimplementedError(
        "ending a connection: the kernel can't (it is built without INET_DIAG_DESTROY)");
  }
  return ErrnoStatus(-error.error, "ending a connection");
}

absl::StatusOr<std::vector<TcpSocket>> SocketDiag::Tcp(uint16_t first_port, uint16_t last_port) {
  return TcpIn(kTcpStates, first_port, last_port);
}

absl::StatusOr<std::vector<TcpSocket>> SocketDiag::TimeWaiting(uint16_t first_port, uint16_t last_port) {
  return TcpIn(Bit(kTimeWait), first_port, last_port);
}

absl::StatusOr<std::vector<TcpSocket>> SocketDiag::TcpIn(uint32_t states, uint16_t first_port,
                                                         uint16_t last_port) {
  struct {
    inet_diag_req_v2 request{};
    rtattr filter_header{};
    inet_diag_bc_op filter[4]{};
  } asked;
  asked.request.sdiag_protocol = IPPROTO_TCP;
  asked.request.idiag_ext = 1 << (INET_DIAG_INFO - 1);
  asked.request.idiag_states = states;
  asked.filter_header.rta_type = INET_DIAG_REQ_BYTECODE;
  asked.filter_header.rta_len = sizeof asked.filter_header + sizeof asked.filter;
  // Each comparison has its port in the entry behind it. One that fails jumps beyond the end.
  constexpr unsigned char kNext = 2 * sizeof asked.filter[0];
  constexpr uint16_t kBeyond = sizeof(inet_diag_bc_op);
  asked.filter[0] = {INET_DIAG_BC_S_GE, kNext, static_cast<uint16_t>(2 * kNext + kBeyond)};
  asked.filter[1] = {0, 0, first_port};
  asked.filter[2] = {INET_DIAG_BC_S_LE, kNext, static_cast<uint16_t>(kNext + kBeyond)};
  asked.filter[3] = {0, 0, last_port};
  std::vector<TcpSocket> sockets;
  for (uint8_t family : {AF_INET, AF_INET6}) {
    asked.request.sdiag_family = family;
    absl::Status status = DumpSockets(requests_.get(), {reinterpret_cast<const char*>(&asked), sizeof asked},
                                      [&](absl::string_view message) {
                                        TcpSocket socket;
                                        if (ParseTcp(message, &socket)) sockets.push_back(socket);
                                      });
    if (!absl::IsNotFound(status)) RK_RETURN_IF_ERROR(status);
  }
  return sockets;
}

absl::StatusOr<std::vector<UnixSocket>> SocketDiag::Unix() {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = Bit(kEstablished) | Bit(kListens);
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_RQLEN;
  std::vector<UnixSocket> sockets;
  absl::Status status =
      DumpSockets(requests_.get(), {reinterpret_cast<const char*>(&request), sizeof request},
                  [&](absl::string_view message) {
                    UnixSocket socket;
                    if (ParseUnix(message, &socket)) sockets.push_back(std::move(socket));
                  });
  if (!absl::IsNotFound(status)) RK_RETURN_IF_ERROR(status);
  return sockets;
}

std::vector<TcpSocket> SocketDiag::DestroyedTcp() {
  std::vector<TcpSocket> sockets;
  if (!destroyed_.valid()) return sockets;
  alignas(nlmsghdr) std::array<char, 16384> told;
  for (;;) {
    const ssize_t n = ::recv(destroyed_.get(), told.data(), told.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == ENOBUFS)) continue;
    if (n <= 0) return sockets;
    absl::string_view left(told.data(), static_cast<size_t>(n));
    nlmsghdr header;
    TcpSocket socket;
    if (TakeMessage(left, &header) && header.nlmsg_len <= left.size() &&
        ParseTcp(left.substr(sizeof header, header.nlmsg_len - sizeof header), &socket)) {
      sockets.push_back(socket);
    }
  }
}

}  // namespace rekindle::restore
