#include "daemon/accept_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// When the process has no descriptors left, this long until the next try.
constexpr absl::Duration kPauseWhenFull = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Start(std::vector<UniqueFd> sockets,
                                                              OnConnection on_connection) {
  UniqueFd any(::epoll_create1(EPOLL_CLOEXEC));
  if (!any.valid()) return ErrnoStatus(errno, "listening");
  for (const UniqueFd& socket : sockets) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(any.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
      return ErrnoStatus(errno, "listening");
  }
  std::unique_ptr<AcceptLoop> loop(
      new AcceptLoop(std::move(sockets), std::move(any), std::move(on_connection)));
  RK_RETURN_IF_ERROR(loop->thread_.Start([l = loop.get()] { l->Loop(); }));
  return loop;
}

AcceptLoop::AcceptLoop(std::vector<UniqueFd> sockets, UniqueFd any, OnConnection on_connection)
    : sockets_(std::move(sockets)), any_(std::move(any)), on_connection_(std::move(on_connection)) {}

void AcceptLoop::Stop() {
  if (!thread_.running()) return;
  thread_.Stop();
  sockets_.clear();
}

void AcceptLoop::Loop() {
  for (;;) {
    const auto woken = thread_.Await(any_.get());
    if (!woken.ok()) Log(LogLevel::kError, woken.status().message());
    if (!woken.ok() || *woken == StoppableThread::Woken::kStopped) return;
    // Of those to which nothing has come there is nothing to be had.
    for (const UniqueFd& socket : sockets_) {
      if (!Accept(socket.get())) return;
    }
  }
}

bool AcceptLoop::Accept(int socket) {
  UniqueFd connection(::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid()) {
    on_connection_(std::move(connection));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    Log(LogLevel::kWarning, ErrnoStatus(errno, "taking a connection").message());
    return thread_.Pause(kPauseWhenFull);
  }
  return true;
}

}  // namespace rekindle::daemon
