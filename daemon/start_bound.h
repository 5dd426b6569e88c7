// What bounds the making of a copy: the time that it may take, and that the daemon ends.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "daemon/cancellation.h"

namespace rekindle::daemon {

// Thread-compatible.
class StartBound {
 public:
  // `ending` outlives it. `by`: in SteadyNow(), may lie in the past or in the infinite future.
  static absl::StatusOr<StartBound> Make(const Cancellation& ending, absl::Time by);

  // Readable from when the time is over, or `ending` is cancelled.
  int fd() const { return any_.get(); }

 private:
  UniqueFd timer_, any_;
};

}  // namespace rekindle::daemon
