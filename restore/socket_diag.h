// The sockets of a network namespace as the kernel lists them (NETLINK_SOCK_DIAG), without touching who has
// them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "criu/image_files.h"

namespace rekindle::restore {

struct TcpSocket {
  uint64_t cookie = 0;  // its name for as long as the machine runs; no other socket gets it
  uint32_t inode = 0;   // as in /proc/PID/fd; 0: nobody has it open
  uid_t user = 0;       // who has made it; says nothing where nobody has it open
  bool listens = false;
  uint64_t bytes_sent = 0;   // of content, acknowledged or not
  criu::TcpConnection ends;  // of one that listens the local one alone counts
};

// Of type SOCK_STREAM or SOCK_SEQPACKET, and with a name.
struct UnixSocket {
  uint64_t cookie = 0;
  uint32_t inode = 0;
  std::string name;  // one that was accepted has its listener's; begins with NUL: an abstract one
  bool listens = false;
  bool unread = false;      // the other end has not read all that was sent to it
  bool peer_ended = false;  // the other end has been closed
};

// The one with these ends, in the network namespace of the calling thread; `bytes_sent` is left out. By the
// kernel's own index: what other sockets there are does not matter. Nothing: there is none, or this kernel
// has no such index (tcp_diag), which it does not tell apart. An end of IPv4 is found by addresses of IPv4,
// whichever kind of socket it is. Thread-safe.
absl::StatusOr<std::optional<TcpSocket>> FindTcp(const criu::TcpConnection& ends);

// Owned by one thread at a time.
class SocketDiag {
 public:
  // Of the network namespace of `process`; 0: of this one's own. PermissionDenied without CAP_SYS_ADMIN, but
  // not of the own one.
  static absl::StatusOr<SocketDiag> Open(pid_t process);

  // Those of IPv4 and IPv6 whose local ports lie in [first_port, last_port], and that listen or have a
  // connection. Takes about half a millisecond, most of it for the kernel's look through its table. What the
  // kernel has no such list of is left out.
  absl::StatusOr<std::vector<TcpSocket>> Tcp(uint16_t first_port, uint16_t last_port);
  // Connections of such ports that are over, and nobody's: the kernel keeps their place for a minute, so that
  // nothing that comes late is taken for another one's, and most who want the port wait for that.
  absl::StatusOr<std::vector<TcpSocket>> TimeWaiting(uint16_t first_port, uint16_t last_port);
  absl::StatusOr<std::vector<UnixSocket>> Unix();
  // Ends a connection; its other end is told by a reset. Unimplemented: this kernel can't.
  absl::Status Destroy(const TcpSocket& socket);

  // Readable when a TCP socket of the namespace has been destroyed. -1: that is not told to who lacks
  // CAP_NET_ADMIN.
  int destroyed_fd() const { return destroyed_.get(); }
  // Those since the last call, without their inodes; does not wait. What came faster than it was asked for is
  // lost.
  std::vector<TcpSocket> DestroyedTcp();

 private:
  SocketDiag(UniqueFd requests, UniqueFd destroyed)
      : requests_(std::move(requests)), destroyed_(std::move(destroyed)) {}
  absl::StatusOr<std::vector<TcpSocket>> TcpIn(uint32_t states, uint16_t first_port, uint16_t last_port);

  UniqueFd requests_, destroyed_;
};

}  // namespace rekindle::restore
