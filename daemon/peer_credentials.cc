#include "daemon/peer_credentials.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/descriptor_limit.h"
#include "base/status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace rekindle::daemon {
namespace {

std::vector<gid_t> PeerGroups(int socket) {
  std::vector<gid_t> groups(64);
  for (;;) {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE) return {};
    groups.resize(size / sizeof(gid_t));
  }
}

UniqueFd PeerPidfd(int socket, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) return UniqueFd(pidfd);
  // Older kernels: by number. The peer may have ended since and its number be another's, so only a socket
  // that is still connected vouches for it.
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  char byte;
  ssize_t got = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN)) return UniqueFd();
  return opened;
}

}  // namespace

absl::StatusOr<Caller> ReadPeerCredentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "asking the kernel who connected");
  }
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = credentials.uid;
  caller.gid = credentials.gid;
  caller.pid = credentials.pid;
  caller.groups = PeerGroups(socket);
  std::sort(caller.groups.begin(), caller.groups.end());
  if (credentials.pid > 0) {
    UniqueFd pidfd = PeerPidfd(socket, credentials.pid);
    if (pidfd.valid()) caller.pidfd = std::make_shared<const UniqueFd>(std::move(pidfd));
  }
  return caller;
}

void PeerRegistry::LetGoOfTheDead() {
  std::vector<pollfd> entries;
  std::vector<Caller*> callers;
  for (auto& [number, caller] : callers_) {
    if (!caller.pidfd) continue;
    entries.push_back({caller.pidfd->get(), POLLIN, 0});
    callers.push_back(&caller);
  }
  if (::poll(entries.data(), entries.size(), 0) <= 0) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) callers[i]->pidfd.reset();
  }
}

absl::StatusOr<UniqueFd> PeerRegistry::Admit(UniqueFd connection, Caller caller, bool administrator) {
  absl::MutexLock lock(&mutex_);
  LetGoOfTheDead();
  const size_t most = users_numbers_.value_or(DescriptorLimit() / 2);
  const size_t most_own =
      administrator ? std::max<size_t>(kNumbersPerIdentity, DescriptorLimit() / 4) : kNumbersPerIdentity;
  size_t own_numbers = 0, users_numbers = 0;
  for (const auto& [number, owner] : callers_) {
    own_numbers += owner.SameIdentity(caller);
    users_numbers += owner.uid != 0;
  }
  if (callers_.find(connection.get()) == callers_.end()) {
    // Beside what else comes and goes here a connection gets ever new numbers. One that was this identity's
    // before does as well; asking for it by F_DUPFD takes it only if it is free.
    for (const auto& [number, owner] : callers_) {
      if (!owner.SameIdentity(caller)) continue;
      UniqueFd again(::fcntl(connection.get(), F_DUPFD_CLOEXEC, number));
      if (again.get() != number) continue;
      connection = std::move(again);
      break;
    }
  }
  for (;;) {
    auto known = callers_.find(connection.get());
    if (known == callers_.end() && own_numbers >= most_own) {
      return absl::ResourceExhaustedError(
          absl::StrCat("user ", caller.uid, " has too many connections (", most_own, "): close some",
                       administrator ? ", or raise the daemon's limit of descriptors" : ""));
    }
    if (known == callers_.end() && caller.uid != 0 && users_numbers >= most) {
      return absl::ResourceExhaustedError(absl::StrCat("user ", caller.uid,
                                                       " is one too many: others have had all ", most,
                                                       " connections that there are for users. Raise the "
                                                       "daemon's limit of descriptors, and start it anew"));
    }
    if (known == callers_.end() || known->second.SameIdentity(caller)) {
      callers_.insert_or_assign(connection.get(), std::move(caller));
      return connection;
    }
    UniqueFd other(::fcntl(connection.get(), F_DUPFD_CLOEXEC, connection.get() + 1));
    if (!other.valid()) return ErrnoStatus(errno, "taking a connection");
    connection = std::move(other);
  }
}

std::optional<Caller> PeerRegistry::Find(absl::string_view peer) const {
  int number = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &number)) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  auto known = callers_.find(number);
  if (known == callers_.end()) return std::nullopt;
  return known->second;
}

}  // namespace rekindle::daemon
