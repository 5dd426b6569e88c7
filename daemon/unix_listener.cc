#include "daemon/unix_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "daemon/listener_note.h"

namespace rekindle::daemon {
namespace {

constexpr int kBacklog = 128;

// AlreadyExists: there is something else than a socket, whoever's that was.
absl::Status CheckIsFreeOrSocket(const std::string& path) {
  struct stat existing;
  if (::lstat(path.c_str(), &existing) != 0 || S_ISSOCK(existing.st_mode)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("listening on ", path, ": there is something else of that name"));
}

// By whoever has the lock.
absl::StatusOr<UniqueFd> ListenInPlaceOf(const std::string& path, mode_t mode) {
  // Whoever finds it is answered, and before it has its mode nobody does. A name at the longest has no room
  // for another one beside it, and does without.
  std::string made = absl::StrCat(path, kStartingSuffix);
  auto address = UnixAddressOf(made);
  if (!address.ok()) {
    made = path;
    RK_ASSIGN_OR_RETURN(address, UnixAddressOf(made));
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "making a socket");
  for (const std::string& name : {path, made}) RK_RETURN_IF_ERROR(CheckIsFreeOrSocket(name));
  if (::unlink(made.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, absl::StrCat("replacing the old socket ", made));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return ErrnoStatus(errno, absl::StrCat("listening on ", path));
  if (::chmod(made.c_str(), mode) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      (made != path && ::rename(made.c_str(), path.c_str()) != 0)) {
    const int error = errno;
    ::unlink(made.c_str());
    return ErrnoStatus(error, absl::StrCat("listening on ", path));
  }
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Start(const std::string& path, mode_t mode,
                                                                  const std::string& note,
                                                                  OnConnection on_connection) {
  RK_RETURN_IF_ERROR(UnixAddressOf(path).status());
  // The lock tells a live daemon's socket from a dead one's, without a gap between looking and replacing.
  absl::StatusOr<UniqueFd> opened = OpenFile(ListenerLockPath(path), O_RDWR | O_CREAT, 0600);
  if (absl::IsNotFound(opened.status())) {
    const std::string folder = path.substr(0, path.rfind('/'));
    return absl::FailedPreconditionError(absl::StrCat("listening on ", path, ": the folder ", folder,
                                                      " is not there: make it (mkdir -p ", folder,
                                                      "), or name another --socket"));
  }
  RK_ASSIGN_OR_RETURN(UniqueFd lock, std::move(opened));
  RK_ASSIGN_OR_RETURN(const bool locked, LockWithin(lock, LOCK_EX, kForkMayTake, ListenerLockPath(path)));
  if (!locked) {
    return absl::AlreadyExistsError(absl::StrCat("listening on ", path,
                                                 ": another rekindled has it, maybe one that is ending: stop "
                                                 "it and wait for its end, or give this one "
                                                 "another --socket"));
  }
  RK_RETURN_IF_ERROR(WriteListenerNote(lock.get(), note, path));
  RK_ASSIGN_OR_RETURN(UniqueFd socket, ListenInPlaceOf(path, mode));
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  absl::StatusOr<std::unique_ptr<AcceptLoop>> loop =
      AcceptLoop::Start(std::move(sockets), std::move(on_connection));
  if (!loop.ok()) return Annotate(loop.status(), absl::StrCat("listening on ", path));
  return std::unique_ptr<UnixListener>(new UnixListener(path, std::move(lock), *std::move(loop)));
}

UnixListener::UnixListener(std::string path, UniqueFd lock, std::unique_ptr<AcceptLoop> loop)
    : path_(std::move(path)), lock_(std::move(lock)), loop_(std::move(loop)) {}

void UnixListener::Stop() {
  if (!loop_) return;
  loop_->Stop();
  ::unlink(path_.c_str());
  loop_.reset();
}

}  // namespace rekindle::daemon
