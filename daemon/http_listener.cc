#include "daemon/http_listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "daemon/bind_patience.h"

namespace rekindle::daemon {
namespace {

constexpr int kWaiting = 512;

// One that a dead daemon has left refuses.
bool SomebodyListensAt(const std::string& path) {
  const absl::StatusOr<UniqueFd> probe = ConnectTo(path, SOCK_NONBLOCK);
  return probe.ok() || ErrnoOf(probe.status()) == EAGAIN;
}

absl::StatusOr<UniqueFd> ListenOnPath(const std::string& path, absl::string_view option) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": ", path, " is there and no socket: name another path"));
    }
    if (!AwaitAddress([&path] { return SomebodyListensAt(path); })) {
      return absl::AlreadyExistsError(absl::StrCat(option, ": listening on ", path,
                                                   ": another process has it, such as another rekindled, "
                                                   "maybe one that is ending: stop that and wait for "
                                                   "its end, or name another path"));
    }
    ::unlink(path.c_str());
  }
  RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenAt(path));
  // Room for more that wait than most such sockets need: clients that don't block are refused else.
  if (::listen(listener.get(), kWaiting) != 0)
    return ErrnoStatus(errno, absl::StrCat(option, ": listening on ", path));
  if (::chmod(path.c_str(), 0666) != 0) return ErrnoStatus(errno, absl::StrCat(option, ": ", path));
  return listener;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenForHttp(const std::string& address, absl::string_view option) {
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) return ListenOnPath(std::string(path), option);
  if (absl::Status known = CheckHostPort(address, AddressUse::kListen); !known.ok())
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", known.message(), "; or unix:PATH"));
  const auto [host, port] = SplitHostPort(address);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", address, ": ", ::gai_strerror(error)));
  }
  UniqueFd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  int bound = -1;
  const bool listens = listener.valid() &&
                       ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       AwaitAddress([&] {
                         bound = ::bind(listener.get(), found->ai_addr, found->ai_addrlen);
                         return bound != 0 && errno == EADDRINUSE;
                       }) &&
                       bound == 0 && ::listen(listener.get(), kWaiting) == 0;
  const int failure = errno;
  ::freeaddrinfo(found);
  if (!listens) {
    const absl::Status why = ErrnoStatus(failure, absl::StrCat(option, ": listening on ", address));
    return WithMessage(
        why, absl::StrCat(why.message(), ": choose another address",
                          failure == EADDRINUSE ? ", or end what has this one ('ss -ltnp' shows it)" : ""));
  }
  return listener;
}

}  // namespace rekindle::daemon
