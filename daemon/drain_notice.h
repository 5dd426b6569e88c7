// Asks a command now and then whether this machine is about to be taken away, as clouds tell of spot
// instances some seconds or minutes before.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "daemon/wakeup.h"

namespace rekindle::daemon {

// Thread-safe.
class DrainNotice {
 public:
  // Runs `command` with /bin/sh every `interval`; exit status 0 means that the machine goes. Then `on_notice`
  // is called, once for as long as the command says so.
  DrainNotice(std::string command, absl::Duration interval, std::function<void()> on_notice);
  // Waits for a command or a call that is under way.
  ~DrainNotice();

 private:
  void Loop();

  const std::string command_;
  const absl::Duration interval_;
  const std::function<void()> on_notice_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
