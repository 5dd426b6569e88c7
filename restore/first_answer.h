// Has a job that listens answered for the first time? Seen from outside, in the kernel's lists of sockets:
// nothing is asked of the job, and nothing of it is changed.
//
// On TCP the kernel counts what was sent: a connection to a port that the job listens on has been answered
// when the first byte of content has been sent back on it. Short ones count too, as the kernel tells of each
// when it is destroyed. With TLS that byte belongs to the handshake.
//
// On Unix sockets (stream, seqpacket) nothing is counted. A connection that the job has accepted counts as
// answered when it has sent something that the other side has not read yet, or when one side has closed it.
// Missed is what begins and ends between two looks, and a connection that stays and whose client reads at
// once.
//
// Where others listen on the same port or path too, such as another copy of the image on the machine's
// network, only connections count that one of `processes` has been seen to have.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "restore/socket_diag.h"

namespace rekindle::restore {

// Owned by one thread at a time.
class FirstAnswer {
 public:
  // `processes`: pidfds of the job's processes, which stand still; what there is of connections now does not
  // count. Null: none of them listens.
  static absl::StatusOr<std::unique_ptr<FirstAnswer>> Watch(std::vector<UniqueFd> processes);
  ~FirstAnswer();

  // Readable when it is time for a Look: at once when a TCP connection has ended, else every 5 ms, or less
  // often, so that all watches of this process together take a twentieth of a CPU at most.
  int fd() const { return epoll_.get(); }
  // False: not yet.
  absl::StatusOr<bool> Look();

 private:
  FirstAnswer();
  absl::Status Begin();
  absl::StatusOr<bool> AnsweredOverTcp(const std::vector<TcpSocket>& destroyed);
  absl::StatusOr<bool> AnsweredOverUnix(size_t network);
  // Unless it is known to be another process's, which also listens there.
  bool MayBeOurs(const TcpSocket& connection) const;
  bool TimeIsUp() const;
  void SetTimer(double look_seconds);
  // What the job has open now.
  std::set<uint32_t> SocketInodes() const;

  std::vector<UniqueFd> processes_;
  UniqueFd epoll_, timer_;
  // The job's own, and this process's where that is another one: a Unix socket's connections are in the
  // namespace of who connects.
  std::vector<SocketDiag> networks_;
  // What the job listens on, and the inodes of those sockets.
  std::set<uint16_t> ports_;
  std::set<std::string> names_;
  std::set<uint32_t> listeners_;
  std::set<uint16_t> shared_ports_;  // on which others listen too, as of the last look
  // Cookies of connections by network (kernels before 5.10 count them in each): that do not count, and that
  // the job has.
  using Connection = std::pair<size_t, uint64_t>;
  std::set<Connection> before_, tcp_, unix_;
};

}  // namespace rekindle::restore
