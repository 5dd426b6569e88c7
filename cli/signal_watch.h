// Signals as calls on a thread, instead of what they would do.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "base/unique_fd.h"

namespace rekindle::cli {

// As long as it exists the thread that has made it, and those that it makes later, leave `signals` to it.
// Make and end it on one thread.
class SignalWatch {
 public:
  // Calls `action` with each, on a thread of its own that takes no other signals: those who wait for them may
  // block them later.
  SignalWatch(const sigset_t& signals, std::function<void(int signal)> action);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void Loop();

  const sigset_t watched_;
  const std::function<void(int)> action_;
  UniqueFd signals_, stop_;
  std::thread thread_;
};

}  // namespace rekindle::cli
