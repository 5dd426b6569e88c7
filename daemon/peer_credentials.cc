#include "daemon/peer_credentials.h"

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

void PeerRegistry::ForgetClosed() {
  std::erase_if(known_, [](const auto& entry) { return !entry.second.connection.IsStillOpen(); });
}

void PeerRegistry::LetGoOfTheDead() {
  std::vector<pollfd> entries;
  std::vector<Caller*> callers;
  for (auto& [number, known] : known_) {
    if (!known.caller.pidfd) continue;
    entries.push_back({known.caller.pidfd->get(), POLLIN, 0});
    callers.push_back(&known.caller);
  }
  if (::poll(entries.data(), entries.size(), 0) <= 0) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) callers[i]->pidfd.reset();
  }
}

void PeerRegistry::ShareProcess(Caller* caller) {
  if (!caller->pidfd) return;
  // Connections are taken in the order in which they were made: as long as the process of an earlier one
  // lives, its number is nobody else's.
  for (const auto& [number, known] : known_) {
    if (known.caller.pid != caller->pid || !known.caller.pidfd) continue;
    caller->pidfd = known.caller.pidfd;
    return;
  }
}

absl::Status PeerRegistry::HasRoom(const Caller& caller, bool administrator) const {
  const size_t most = users_numbers_.value_or(DescriptorLimit() / 2);
  const size_t most_own =
      administrator ? std::max<size_t>(kNumbersPerIdentity, DescriptorLimit() / 4) : kNumbersPerIdentity;
  size_t own = 0, of_users = 0;
  for (const auto& [number, known] : known_) {
    own += known.caller.uid == caller.uid;
    of_users += known.caller.uid != 0;
  }
  if (own >= most_own) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", caller.uid, " has too many connections (", most_own, "): close some",
                     administrator ? ", or raise the daemon's limit of descriptors" : ""));
  }
  if (caller.uid != 0 && of_users >= most) {
    return absl::ResourceExhaustedError(absl::StrCat("user ", caller.uid,
                                                     " is one too many: others have all ", most,
                                                     " connections that there are for users. Close some, or "
                                                     "raise the daemon's limit of descriptors, and start it "
                                                     "anew"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> PeerRegistry::Admit(UniqueFd connection, Caller caller, bool administrator) {
  const std::optional<OpenDescriptor> opened = OpenDescriptor::Of(connection.get());
  if (!opened) return ErrnoStatus(errno, "looking at a connection");
  absl::MutexLock lock(&mutex_);
  ForgetClosed();
  known_.erase(connection.get());  // of one that was closed
  LetGoOfTheDead();
  RK_RETURN_IF_ERROR(HasRoom(caller, administrator));
  ShareProcess(&caller);
  known_.emplace(connection.get(), Known{std::move(caller), *opened});
  return connection;
}

std::optional<Caller> PeerRegistry::Find(absl::string_view peer) const {
  int number = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &number)) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  auto known = known_.find(number);
  if (known == known_.end()) return std::nullopt;
  return known->second.caller;
}

}  // namespace rekindle::daemon
