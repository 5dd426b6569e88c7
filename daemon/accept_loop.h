// A thread that takes connections.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/stoppable_thread.h"
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
  AcceptLoop(std::vector<UniqueFd> sockets, UniqueFd any, OnConnection on_connection);
  void Loop();
  // False: it is to end.
  bool Accept(int socket);

  std::vector<UniqueFd> sockets_;
  const UniqueFd any_;  // readable when one of them is
  const OnConnection on_connection_;
  StoppableThread thread_;
};

}  // namespace rekindle::daemon
