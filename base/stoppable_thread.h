// A thread that waits for a descriptor, or for time to pass, until it is told to end.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace rekindle {

// Owned by one thread at a time; Await and Pause are for its work alone. A member that the work uses has to
// outlive it: this comes behind.
class StoppableThread {
 public:
  StoppableThread() = default;
  ~StoppableThread() { Stop(); }
  StoppableThread(const StoppableThread&) = delete;
  StoppableThread& operator=(const StoppableThread&) = delete;

  // Once. `work` is to return when Await has said kStopped; it may before. An error, ResourceExhausted for
  // one, where there is no descriptor or no thread left: then there is nothing to stop.
  absl::Status Start(std::function<void()> work);
  // Tells it to end, and waits until it has. Nothing where none was started, or it was stopped before.
  void Stop();

  // Started, and not stopped yet; its work may be done.
  bool running() const { return thread_.joinable(); }

  enum class Woken { kReady, kStopped, kTimeIsUp };
  // Until `fd` (-1: none) can be read or its other side has gone, for `patience` at most. A signal does not
  // end it. kStopped comes first, and for good. An error says that nothing can be waited for.
  absl::StatusOr<Woken> Await(int fd, absl::Duration patience = absl::InfiniteDuration());
  // False: it is to end, or nothing can be waited for.
  bool Pause(absl::Duration time);

 private:
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace rekindle
