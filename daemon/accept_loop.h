// A thread that takes connections.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// Thread-compatible.
class AcceptLoop {
 public:
  // Called on the loop's thread with each new connection (non-blocking, close-on-exec).
  using OnConnection = std::function<void(UniqueFd connection)>;

  // Takes what comes to `sockets`, which listen and do not block. With no descriptors left it waits for some.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Start(std::vector<UniqueFd> sockets,
                                                           OnConnection on_connection);
  ~AcceptLoop() { Stop(); }

  // Takes no more, and closes the sockets.
  void Stop();

 private:
  AcceptLoop(std::vector<UniqueFd> sockets, UniqueFd stop, OnConnection on_connection);
  void Loop();
  void Accept(int socket);

  std::vector<UniqueFd> sockets_;
  const UniqueFd stop_;
  const OnConnection on_connection_;
  std::thread thread_;
};

}  // namespace rekindle::daemon
