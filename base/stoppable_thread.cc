#include "base/stoppable_thread.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr absl::Duration kShortOfMemory = absl::Milliseconds(10);  // the kernel, for a moment

}  // namespace

absl::Status StoppableThread::Start(std::function<void()> work) {
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return ErrnoStatus(errno, "making an event descriptor");
  return CatchNoMoreThreads([&] {
    thread_ = std::thread(std::move(work));
    return absl::OkStatus();
  });
}

void StoppableThread::Stop() {
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::StatusOr<StoppableThread::Woken> StoppableThread::Await(int fd, absl::Duration patience) {
  const Deadline deadline(patience);
  for (;;) {
    pollfd entries[2] = {{stop_.get(), POLLIN, 0}, {fd, POLLIN, 0}};
    const int ready = ::poll(entries, 2, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 && (errno == ENOMEM || errno == EAGAIN)) {
      absl::SleepFor(kShortOfMemory);
      continue;
    }
    if (ready < 0) return ErrnoStatus(errno, "waiting for a descriptor");
    if (entries[0].revents != 0) return Woken::kStopped;
    if (entries[1].revents != 0) return Woken::kReady;
    if (deadline.passed()) return Woken::kTimeIsUp;
  }
}

bool StoppableThread::Pause(absl::Duration time) {
  const absl::StatusOr<Woken> woken = Await(-1, time);
  return woken.ok() && *woken != Woken::kStopped;
}

}  // namespace rekindle
