// CRIU can wait without end for a process that is killed just when its threads are being seized: the first
// thread is not given to its tracer before all others are reaped, and these wait for the same tracer. So long
// the rest of the job stands still, and nobody is told that it has died.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/stoppable_thread.h"

namespace rekindle::ckpt {

// Ends a CRIU that goes on with its dump although one of the job's processes has died some seconds ago: there
// can be no image any more, and without its tracer the rest of the job runs on. Thread-safe.
class DeathWatch {
 public:
  static constexpr absl::Duration kMayGoOn = absl::Seconds(3);

  // Of `root` and all that descends from it and lives now.
  explicit DeathWatch(pid_t root);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // To be called once. ResourceExhausted: there is no thread or descriptor left for it.
  absl::Status Start();

  // `criu` is there from now on, and stays open until this is gone.
  void Guard(int criu_pidfd) ABSL_LOCKS_EXCLUDED(mutex_);

  // Who has died, when CRIU was ended for it.
  std::optional<pid_t> ended_for() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<pid_t> FirstDead() const;

  std::map<pid_t, uint64_t> processes_;  // when each began
  mutable absl::Mutex mutex_;
  int criu_ ABSL_GUARDED_BY(mutex_) = -1;
  std::optional<pid_t> ended_for_ ABSL_GUARDED_BY(mutex_);
  StoppableThread thread_;
};

}  // namespace rekindle::ckpt
