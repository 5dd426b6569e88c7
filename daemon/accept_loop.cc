#include "daemon/accept_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// When the process has no descriptors left, this long until the next try.
constexpr int kPauseWhenFullMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Start(std::vector<UniqueFd> sockets,
                                                              OnConnection on_connection) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "listening");
  std::unique_ptr<AcceptLoop> loop(
      new AcceptLoop(std::move(sockets), std::move(stop), std::move(on_connection)));
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
    loop->thread_ = std::thread(&AcceptLoop::Loop, loop.get());
    return absl::OkStatus();
  }));
  return loop;
}

AcceptLoop::AcceptLoop(std::vector<UniqueFd> sockets, UniqueFd stop, OnConnection on_connection)
    : sockets_(std::move(sockets)), stop_(std::move(stop)), on_connection_(std::move(on_connection)) {}

void AcceptLoop::Stop() {
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
  sockets_.clear();
}

void AcceptLoop::Loop() {
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& socket : sockets_) entries.push_back({socket.get(), POLLIN, 0});
  for (;;) {
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[0].revents != 0) return;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) Accept(entries[i].fd);
    }
  }
}

void AcceptLoop::Accept(int socket) {
  UniqueFd connection(::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid()) {
    on_connection_(std::move(connection));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    Log(LogLevel::kWarning, ErrnoStatus(errno, "taking a connection").message());
    pollfd pause{stop_.get(), POLLIN, 0};
    ::poll(&pause, 1, kPauseWhenFullMs);
  }
}

}  // namespace rekindle::daemon
