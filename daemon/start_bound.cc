#include "daemon/start_bound.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/status.h"

namespace rekindle::daemon {

absl::StatusOr<StartBound> StartBound::Make(const Cancellation& ending, absl::Time by) {
  StartBound bound;
  bound.any_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!bound.any_.valid()) return ErrnoStatus(errno, "bounding the time of a start");
  epoll_event event = {.events = EPOLLIN, .data = {}};
  if (by != absl::InfiniteFuture()) {
    bound.timer_.Reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    // One of zero would not run.
    const itimerspec when = {.it_interval = {},
                             .it_value = absl::ToTimespec(std::max(by - SteadyNow(), absl::Nanoseconds(1)))};
    if (!bound.timer_.valid() || ::timerfd_settime(bound.timer_.get(), 0, &when, nullptr) != 0 ||
        ::epoll_ctl(bound.any_.get(), EPOLL_CTL_ADD, bound.timer_.get(), &event) != 0) {
      return ErrnoStatus(errno, "bounding the time of a start");
    }
  }
  if (::epoll_ctl(bound.any_.get(), EPOLL_CTL_ADD, ending.fd(), &event) != 0)
    return ErrnoStatus(errno, "bounding a start by the daemon's end");
  return bound;
}

}  // namespace rekindle::daemon
