// A Unix socket that takes connections on a thread of its own.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/held_lock.h"
#include "base/unique_fd.h"
#include "daemon/accept_loop.h"

namespace rekindle::daemon {

// Thread-compatible.
class UnixListener {
 public:
  using OnConnection = AcceptLoop::OnConnection;  // on the listener's thread

  // Binds `path` with `mode` and begins to accept; from when on it is there it takes connections. A socket
  // that a dead daemon left is replaced;
  // AlreadyExists when a live one owns it. While it lives it holds a lock on `path`.lock, which stays with
  // `note` in it (listener_note.h).
  static absl::StatusOr<std::unique_ptr<UnixListener>> Start(const std::string& path, mode_t mode,
                                                             const std::string& note,
                                                             OnConnection on_connection);
  ~UnixListener() { Stop(); }

  // Takes no more connections, and removes the socket. The lock stays: what the daemon has is not free yet.
  void Stop();

 private:
  UnixListener(std::string path, UniqueFd lock, std::unique_ptr<AcceptLoop> loop);

  const std::string path_;
  const HeldLock lock_;
  std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace rekindle::daemon
