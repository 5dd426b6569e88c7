// How far a move between device and host memory is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

struct MoveStep {
  uint64_t bytes_done = 0, bytes_total = 0;
  std::vector<std::string> devices;  // UUIDs
};
// Called about ten times a second while device memory moves, by another thread.
using MoveProgress = std::function<void(const MoveStep& step)>;

// The driver does not tell how far it is; that the processes grow, or shrink, does. From its beginning to its
// end it reports to `progress`, which may be none, and is called until the destructor returns. Owned by one
// thread.
class MoveReporter {
 public:
  enum class Way { kToHost, kToDevice };
  // `before`: OwnBytes of the processes before the move. `whole`: WholeMove, or what else is to move.
  MoveReporter(absl::Span<const pid_t> pids, Way way, uint64_t before, MoveStep whole,
               const MoveProgress& progress);
  MoveReporter(const MoveReporter&) = delete;
  MoveReporter& operator=(const MoveReporter&) = delete;
  ~MoveReporter();

 private:
  absl::Notification ended_;
  std::thread thread_;
};

// A step with all of `uses` to do, and nothing done. Thread-safe.
MoveStep WholeMove(absl::Span<const GpuUse> uses);

}  // namespace rekindle::gpu
