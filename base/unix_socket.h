// Unix sockets with a name in the file system.
#pragma once

#include <sys/un.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle {

// Behind the name with which a daemon's socket is bound, before it gets its own: the kernel goes on telling
// that one.
inline constexpr absl::string_view kStartingSuffix = ".starting";

// InvalidArgument when the path is longer than a socket's may be. Thread-safe.
absl::StatusOr<sockaddr_un> UnixAddressOf(const std::string& path);

// A socket that listens at `path`, which must not exist; the caller removes it. A stream's; `flags`:
// SOCK_NONBLOCK, SOCK_SEQPACKET. InvalidArgument when the path is longer than a socket's may be.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path, int flags = 0);

// A stream's socket that is connected to who listens at `path`. `flags`: SOCK_NONBLOCK, with which one whose
// queue is full is EAGAIN (ErrnoOf). Thread-safe.
absl::StatusOr<UniqueFd> ConnectTo(const std::string& path, int flags = 0);

// What gRPC is given for a socket at the absolute `path`: a URI, in which '%', '#' and '?' mean something
// else unless they are written as numbers. Source: RFC 3986, 2.1. Thread-safe.
std::string UnixSocketUri(absl::string_view path);

}  // namespace rekindle
