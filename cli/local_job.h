// A job that runs on this very machine, by its process: it is there also while the daemon is not.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Thread-safe.
class LocalJob {
 public:
  // Null: it is on another machine or in another PID namespace, it has ended, or the daemon does not say.
  static std::shared_ptr<const LocalJob> Find(const v1::JobStarted& started);

  // To its process group, where it leads one. False: it has ended, or is not ours to signal.
  bool Signal(int signal) const;

  // Waits for its end. Nothing: nobody can tell how it ended.
  std::optional<ExitState> AwaitEnd() const;

 private:
  LocalJob(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  const pid_t pid_;
  const UniqueFd pidfd_;
};

}  // namespace rekindle::cli
