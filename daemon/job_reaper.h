// Waits for the jobs that are children of this process. One thread with a pidfd for each; never a wait for
// just any child, which would take the exit statuses of CRIU and other helpers from those who started them.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// The end of one job, for whoever waits for it. Thread-safe.
class JobEnd {
 public:
  void Set(const ExitState& exit);
  // Nothing when the job still runs after `timeout`, of which nothing changes when the clock is set.
  std::optional<ExitState> WaitFor(absl::Duration timeout) const;
  // Has `told` called once it is set, at once if it is, by whoever sets it: it is not to take long.
  void OnceSet(std::function<void()> told) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  mutable std::vector<std::function<void()>> to_tell_;
  std::optional<ExitState> exit_;
};

// Thread-safe. Destroying it leaves the jobs running and unreaped.
class JobReaper {
 public:
  JobReaper() = default;
  ~JobReaper() { Stop(); }

  // Takes over `pid`, a child of this process, and reaps it when it ends; then `on_end` is called on the
  // reaper's thread, before the returned JobEnd tells. `before_reaping`, if any, is called there when it has
  // ended and its PID can't be another's yet.
  absl::StatusOr<std::shared_ptr<const JobEnd>> Adopt(pid_t pid, std::function<void(const ExitState&)> on_end,
                                                      std::function<void()> before_reaping = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A job that is somebody else's child: `ended` becomes readable when it has ended, and `how` tells how it
  // did.
  absl::StatusOr<std::shared_ptr<const JobEnd>> Watch(UniqueFd ended, std::function<ExitState(int ended)> how,
                                                      std::function<void(const ExitState&)> on_end)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Once what is being reaped has been told of. Nobody is reaped any more. By one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Watched {
    UniqueFd ended;
    std::function<ExitState(int ended)> how;
    std::shared_ptr<JobEnd> end;
    std::function<void(const ExitState&)> on_end;
  };
  void Loop();
  void Reap(int ended) ABSL_LOCKS_EXCLUDED(mutex_);
  ExitState ReapChild(pid_t pid);  // on the reaper's thread

  absl::Mutex mutex_;
  std::map<int, Watched> watched_ ABSL_GUARDED_BY(mutex_);  // by descriptor
  UniqueFd epoll_ ABSL_GUARDED_BY(mutex_);                  // made once, then constant
  UniqueFd stop_ ABSL_GUARDED_BY(mutex_);
  std::vector<pid_t> unreaped_;  // of the reaper's thread alone: zombies whose tracers hold them
  std::thread thread_;
};

}  // namespace rekindle::daemon
