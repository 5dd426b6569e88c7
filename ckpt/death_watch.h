// CRIU can wait without end for a process that is killed just when its threads are being seized: the first
// thread is not given to its tracer before all others are reaped, and these wait for the same tracer. So long
// the rest of the job stands still, and nobody is told that it has died. It also waits without end for a
// thread of the kernel's (kernel_workers.h) to do something for it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/stoppable_thread.h"

namespace rekindle::ckpt {

// Ends a CRIU that waits for a dead process of the job for some seconds, and does nothing else meanwhile:
// there can be no image any more, and without its tracer the rest of the job runs on. Those that ended before
// CRIU had seized them are not meant: it does without them.
//
// One that waits for a thread of the kernel's, or whose dump was cancelled, is asked to give up (give_up.h):
// it lets go of the job by itself. Thread-safe.
class DeathWatch {
 public:
  static constexpr absl::Duration kMayGoOn = absl::Seconds(3);

  // `cancel`, which may be null: the dump's.
  explicit DeathWatch(const std::atomic<bool>* cancel = nullptr) : cancel_(cancel) {}
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // To be called once. ResourceExhausted: there is no thread or descriptor left for it.
  absl::Status Start();

  // CRIU is there from now on: the process of this descriptor, which stays open until this is gone, and of
  // this number.
  void Guard(int criu_pidfd, pid_t criu) ABSL_LOCKS_EXCLUDED(mutex_);

  // Who has died, when CRIU was ended for it.
  std::optional<pid_t> ended_for() const ABSL_LOCKS_EXCLUDED(mutex_);

  // CRIU waited for a thread of the kernel's, and was asked to give up for that.
  bool met_kernel_worker() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::atomic<bool>* const cancel_;
  mutable absl::Mutex mutex_;
  int criu_pidfd_ ABSL_GUARDED_BY(mutex_) = -1;
  pid_t criu_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<pid_t> ended_for_ ABSL_GUARDED_BY(mutex_);
  bool met_kernel_worker_ ABSL_GUARDED_BY(mutex_) = false;
  StoppableThread thread_;
};

}  // namespace rekindle::ckpt
