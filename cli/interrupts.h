// Signals that ask the command to end (SIGINT, SIGTERM, SIGHUP), as a call on a thread instead of sudden
// death. Those that it was started to ignore (nohup) stay ignored.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

// At most one at a time. Make it before any other thread: threads made later inherit that the signals wait
// for it. Thread-safe.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();

  // What to do with the next signals; those that came before it had an action are given to it at once.
  void SetAction(std::function<void(int signal)> action) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  const sigset_t watched_;
  UniqueFd signals_, stop_;
  absl::Mutex mutex_;
  std::function<void(int)> action_ ABSL_GUARDED_BY(mutex_);
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace rekindle::cli
