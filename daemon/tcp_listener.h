// TCP sockets that the daemon takes connections on, and how many there may be of them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/open_descriptor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

struct TcpSockets {
  std::vector<UniqueFd> sockets;  // that listen, and do not block
  int port = 0;
};

// Listens on all addresses that HOST of "HOST:PORT" has, or on all of the machine where it has none.
// Unavailable: one of them is taken, or it has none here; with the cure.
absl::StatusOr<TcpSockets> ListenOnTcp(const std::string& address);

// How many connections there may be: whoever reaches the port can make some before anybody knows who it is,
// and each is a descriptor, which those of the machine's own users need as well. Thread-compatible.
class TcpConnections {
 public:
  // At most `most` in all, half of them with one address.
  explicit TcpConnections(size_t most) : most_(most) {}

  // May this one stay? It is counted until it is closed, by whoever. ResourceExhausted: no.
  absl::Status Admit(int connection);

 private:
  struct Known {
    OpenDescriptor connection;
    std::string address;  // its other end's, without the port
  };
  void ForgetClosed();

  const size_t most_;
  std::map<int, Known> known_;  // by descriptor
};

// What there may be by the limit of descriptors.
size_t MostTcpConnections();

}  // namespace rekindle::daemon
