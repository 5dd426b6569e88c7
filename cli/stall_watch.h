// Whether a process that moves data for us has stalled.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/time/time.h"

namespace rekindle::cli {

// Not thread-safe.
class StallWatch {
 public:
  // Of a process that is not reaped before the last question. `patience`: how long it may move nothing;
  // InfiniteDuration: as long as it likes.
  StallWatch(pid_t process, absl::Duration patience) : process_(process), patience_(patience) {}

  absl::Duration patience() const { return patience_; }
  // To be asked now and then while it is waited for, which has gone on for `waited` by now: what it has not
  // done before was not waited for. Movement is what it reads and writes, network and disk alike, where that
  // comes to more than what keeps a connection alive.
  bool Stalled(absl::Duration waited);

 private:
  const pid_t process_;
  const absl::Duration patience_;
  uint64_t moved_ = 0;          // bytes, when it was last seen to move any
  absl::Duration quiet_since_;  // of the present wait
};

// Twice what `timeout`, as rclone reads RCLONE_TIMEOUT, says that a connection may move nothing: rclone has
// tried again before. Null, or not understood: as rclone's default, five minutes. 0: for ever.
absl::Duration StallPatience(const char* timeout);

}  // namespace rekindle::cli
