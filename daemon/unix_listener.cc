#include "daemon/unix_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "daemon/listener_note.h"

namespace rekindle::daemon {
namespace {

constexpr int kBacklog = 128;
// When the process has no descriptors left, this long until the next try.
constexpr absl::Duration kPauseWhenFull = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Start(const std::string& path, mode_t mode,
                                                                  const std::string& note,
                                                                  OnConnection on_connection) {
  RK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddressOf(path));
  // The lock tells a live daemon's socket from a dead one's, without a gap between looking and replacing.
  absl::StatusOr<UniqueFd> opened = OpenFile(ListenerLockPath(path), O_RDWR | O_CREAT, 0600);
  if (absl::IsNotFound(opened.status())) {
    const std::string folder = path.substr(0, path.rfind('/'));
    return absl::FailedPreconditionError(absl::StrCat("listening on ", path, ": the folder ", folder,
                                                      " is not there: make it (mkdir -p ", folder,
                                                      "), or name another --socket"));
  }
  RK_ASSIGN_OR_RETURN(UniqueFd lock, std::move(opened));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("listening on ", path,
                                                 ": another rekindled has it, maybe one that is ending: stop "
                                                 "it and wait for its end, or give this one "
                                                 "another --socket"));
  }
  RK_RETURN_IF_ERROR(WriteListenerNote(lock.get(), note, path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "making a socket");
  struct stat existing;
  if (::lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return absl::AlreadyExistsError(
          absl::StrCat("listening on ", path, ": there is something else of that name"));
    }
    if (::unlink(path.c_str()) != 0)
      return ErrnoStatus(errno, absl::StrCat("replacing the old socket ", path));
  }
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), mode) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening on ", path));
  }
  std::unique_ptr<UnixListener> listener(
      new UnixListener(path, std::move(lock), std::move(socket), std::move(on_connection)));
  RK_RETURN_IF_ERROR(Annotate(listener->thread_.Start([l = listener.get()] { l->Loop(); }),
                              absl::StrCat("listening on ", path)));
  return listener;
}

UnixListener::UnixListener(std::string path, UniqueFd lock, UniqueFd socket, OnConnection on_connection)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      on_connection_(std::move(on_connection)) {}

void UnixListener::Stop() {
  if (!socket_.valid()) return;
  thread_.Stop();
  ::unlink(path_.c_str());
  socket_.Reset();
}

void UnixListener::Loop() {
  for (;;) {
    const auto woken = thread_.Await(socket_.get());
    if (!woken.ok()) Log(LogLevel::kError, Annotate(woken.status(), path_).message());
    if (!woken.ok() || *woken == StoppableThread::Woken::kStopped) return;
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      on_connection_(std::move(connection));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      Log(LogLevel::kWarning, ErrnoStatus(errno, "taking a connection").message());
      if (!thread_.Pause(kPauseWhenFull)) return;
    }
  }
}

}  // namespace rekindle::daemon
