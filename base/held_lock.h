// Locks of flock(2) that end when they should. A child that another thread of the process was just making has
// the file too, and with it the lock, until it begins its program.
#pragma once

#include <sys/file.h>

#include <utility>

#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace rekindle {

// For how long a lock may so outlive a process that has ended.
constexpr absl::Duration kForkMayTake = absl::Milliseconds(500);

// One that ends with its owner, in a process that goes on: closing the file would leave it to such a child.
// Movable; not thread-safe.
class HeldLock {
 public:
  HeldLock() = default;
  explicit HeldLock(UniqueFd locked) : file_(std::move(locked)) {}
  HeldLock(HeldLock&&) noexcept = default;
  HeldLock& operator=(HeldLock&& other) noexcept {
    if (this != &other) {
      Reset();
      file_ = std::move(other.file_);
    }
    return *this;
  }
  ~HeldLock() { Reset(); }

  void Reset() {
    if (file_.valid()) ::flock(file_.get(), LOCK_UN);
    file_.Reset();
  }

 private:
  UniqueFd file_;
};

}  // namespace rekindle
