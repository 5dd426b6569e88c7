// Who is at the other end of a Unix socket. gRPC does not tell, so the daemon accepts connections itself,
// asks the kernel, and remembers the answer under the name that gRPC gives to a connection made from a
// descriptor: "fd:N".
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/open_descriptor.h"
#include "base/unique_fd.h"
#include "daemon/caller.h"

namespace rekindle::daemon {

// The kernel's word on the process that connected `socket`: user, groups, PID and a pidfd. A user namespace's
// unmapped users appear as the overflow user.
absl::StatusOr<Caller> ReadPeerCredentials(int socket);

// Which descriptor number belongs to whom. gRPC keeps a connection's descriptor open until the last call that
// came over it has ended, so no call is taken for one of its number's next user. Thread-safe.
class PeerRegistry {
 public:
  // Connections that one user, whatever his groups, may have at a time. An administrator may have a quarter
  // of what this process may have open.
  static constexpr size_t kNumbersPerIdentity = 256;

  // `users_numbers`: how many all users but root may have together; by default half of what this process may
  // have open, so that root's calls and the daemon's own work always have some.
  explicit PeerRegistry(std::optional<size_t> users_numbers = std::nullopt) : users_numbers_(users_numbers) {}

  // Remembers `caller` for the connection until that is closed, by whoever. The result is the descriptor to
  // hand to gRPC. ResourceExhausted: too many connections of this user, or of all users.
  absl::StatusOr<UniqueFd> Admit(UniqueFd connection, Caller caller, bool administrator)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // `peer` is ServerContext::peer(): "fd:12". Nothing when it is not of that form or unknown.
  std::optional<Caller> Find(absl::string_view peer) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Known {
    Caller caller;
    OpenDescriptor connection;
  };
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A process's descriptor is of no use once that has ended.
  void LetGoOfTheDead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One descriptor of a process serves all its connections.
  void ShareProcess(Caller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status HasRoom(const Caller& caller, bool administrator) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::optional<size_t> users_numbers_;
  mutable absl::Mutex mutex_;
  std::map<int, Known> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
