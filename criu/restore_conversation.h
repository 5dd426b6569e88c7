// What Rekindle and a `criu swrk` say during one restore: the request, CRIU's questions at each stage, its
// answer. Private to criu/.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "criu/hung_restore.h"
#include "criu/images.pb.h"
#include "criu/restore_log.h"
#include "criu/restore_session.h"

namespace rekindle::criu {

inline constexpr int kFirstInheritedInCriu = 16;

// How the conversation ended.
struct RestoreOutcome {
  absl::Status status;       // OK: CRIU reported success
  bool criu_failed = false;  // the log says why
  bool unanswered = false;   // CRIU has not been told that it is over, and may never ask
  pid_t root = 0;            // as far as known, in CRIU's PID namespace
  std::vector<StageReached> stages;
};

// Is the job another user's than root, or are there file locks to be kept?
bool MustBeBounded(const RestoreOptions& options);

// The request without its folders and inherited descriptors.
pb::RpcRequest RestoreRequest(const RestoreOptions& options);

// Owned by one thread.
class RestoreConversation {
 public:
  // The descriptors are the caller's. `cancel_fd` (-1: none) becoming readable ends it with Cancelled.
  // `bounded`: no CRIU does without the library of restore_preload.h. Where `find_dead` finds somebody for
  // whom CRIU waits without end, it ends with Aborted.
  RestoreConversation(int socket, int criu_pidfd, int cancel_fd, bool bounded, FindDead find_dead)
      : socket_(socket),
        criu_pidfd_(criu_pidfd),
        cancel_fd_(cancel_fd),
        bounded_(bounded),
        find_dead_(std::move(find_dead)) {}

  absl::Status Send(const pb::RpcRequest& request) const;
  // Answers CRIU's questions until it reports the end.
  RestoreOutcome Run(const std::function<absl::Status(pid_t root)>& tasks_ready) const;

 private:
  // The next message; nothing when CRIU has gone without one. `may_hang`: somebody for whom CRIU waits may
  // have died.
  absl::StatusOr<std::optional<pb::RpcResponse>> Receive(bool may_hang) const;

  const int socket_, criu_pidfd_, cancel_fd_;
  const bool bounded_;
  const FindDead find_dead_;
};

}  // namespace rekindle::criu
