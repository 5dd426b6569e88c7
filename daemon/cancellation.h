// That somebody wants no more of a long piece of work, as those who wait in it want to be told.
#pragma once

#include <sys/eventfd.h>

#include <atomic>

#include "base/unique_fd.h"

namespace rekindle::daemon {

// Thread-safe.
class Cancellation {
 public:
  Cancellation() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void Cancel() {
    cancelled_.store(true);
    if (event_.valid()) ::eventfd_write(event_.get(), 1);
  }
  // Set, and readable, from then on.
  const std::atomic<bool>& cancelled() const { return cancelled_; }
  int fd() const { return event_.get(); }

 private:
  std::atomic<bool> cancelled_{false};
  const UniqueFd event_;
};

}  // namespace rekindle::daemon
