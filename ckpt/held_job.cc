#include "ckpt/held_job.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/packet_socket.h"
#include "base/unique_fd.h"
#include "rekindle/v1/control_channel.h"

namespace rekindle::ckpt {
namespace {

int OptionOf(int socket, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

// One of the hook's channel: it is made by socketpair(). A server with many connections has some of them, and
// others use these numbers.
UniqueFd ChannelEnd(int pidfd, int number) {
  UniqueFd end(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd, number, 0)));
  sockaddr_storage name;
  socklen_t size = sizeof name;
  const bool is_one = end.valid() && OptionOf(end.get(), SO_DOMAIN) == AF_UNIX &&
                      OptionOf(end.get(), SO_TYPE) == SOCK_SEQPACKET &&
                      OptionOf(end.get(), SO_ACCEPTCONN) == 0 &&
                      ::getsockname(end.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
                      size == sizeof name.ss_family;
  return is_one ? std::move(end) : UniqueFd();
}

// Not valid: nothing holds it.
UniqueFd PeerOfHeld(pid_t pid) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  // A copy that runs has the first one alone.
  if (!pidfd.valid() || !ChannelEnd(pidfd.get(), v1::kControlDescriptor).valid()) return UniqueFd();
  return ChannelEnd(pidfd.get(), v1::kControlPeer);
}

}  // namespace

bool IsHeld(pid_t pid) { return PeerOfHeld(pid).valid(); }

absl::Status LetHeldJobGoOn(pid_t pid) {
  const UniqueFd peer = PeerOfHeld(pid);
  if (!peer.valid()) return absl::NotFoundError(absl::StrCat("process ", pid, " is not held"));
  return SendPacket(peer.get(), R"({"type":"continue"})");
}

}  // namespace rekindle::ckpt
