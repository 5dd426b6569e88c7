// Signals that ask the command to end (SIGINT, SIGTERM, SIGHUP), as a call on a thread instead of sudden
// death. Those that it was started to ignore (nohup) stay ignored, unless somebody has asked for them.
#pragma once

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/signal_watch.h"

namespace rekindle::cli {

// At most one at a time. Make it before any other thread: threads made later inherit that the signals wait
// for it. Thread-safe.
class Interrupts {
 public:
  // `asked`: these signals, too. `unless_ignored`: and these, which do not ask it to end.
  explicit Interrupts(const std::vector<int>& asked = {}, const std::vector<int>& unless_ignored = {});

  // What to do with the next signals; those that came before it had an action are given to it at once.
  void SetAction(std::function<void(int signal)> action) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Take(int signal) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<int> unless_ignored_;
  absl::Mutex mutex_;
  std::function<void(int)> action_ ABSL_GUARDED_BY(mutex_);
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;
  SignalWatch watch_;  // the last: it uses the others
};

}  // namespace rekindle::cli
