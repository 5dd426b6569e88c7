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
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "daemon/caller.h"

namespace rekindle::daemon {

// The kernel's word on the process that connected `socket`: user, groups, PID and a pidfd. A user namespace's
// unmapped users appear as the overflow user.
absl::StatusOr<Caller> ReadPeerCredentials(int socket);

// Which descriptor number belongs to whom. A number is never given to another identity than its first one: a
// late call of a connection that is closed already can then not be taken for a call of its number's next
// user. Thread-safe.
class PeerRegistry {
 public:
  // Descriptor numbers that one user may take over the life of the daemon, and so its connections at a time.
  // An administrator may have a quarter of what this process may have open.
  static constexpr size_t kNumbersPerIdentity = 256;

  // `users_numbers`: how many all users but root may have together; by default half of what this process may
  // have open, so that root's calls and the daemon's own work always have some.
  explicit PeerRegistry(std::optional<size_t> users_numbers = std::nullopt) : users_numbers_(users_numbers) {}

  // Gives the connection a number that was never another identity's and remembers `caller` for it. The result
  // is the descriptor to hand to gRPC. ResourceExhausted: too many connections of this user, or descriptors.
  absl::StatusOr<UniqueFd> Admit(UniqueFd connection, Caller caller, bool administrator)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // `peer` is ServerContext::peer(): "fd:12". Nothing when it is not of that form or unknown.
  std::optional<Caller> Find(absl::string_view peer) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A number's last caller is remembered, but its process's descriptor is of no use once that has ended.
  void LetGoOfTheDead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::optional<size_t> users_numbers_;
  mutable absl::Mutex mutex_;
  std::map<int, Caller> callers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
