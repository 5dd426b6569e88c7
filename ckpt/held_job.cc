#include "ckpt/held_job.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "rekindle/v1/control_channel.h"

namespace rekindle::ckpt {
namespace {

bool IsSocket(pid_t pid, int fd) {
  struct stat info;
  return ::stat(absl::StrCat("/proc/", pid, "/fd/", fd).c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

bool IsHeld(pid_t pid) {
  // A copy that runs has the first one alone.
  return IsSocket(pid, v1::kControlDescriptor) && IsSocket(pid, v1::kControlPeer);
}

absl::Status LetHeldJobGoOn(pid_t pid) {
  if (!IsHeld(pid)) return absl::NotFoundError(absl::StrCat("process ", pid, " is not held"));
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  UniqueFd peer(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), v1::kControlPeer, 0)));
  if (!peer.valid()) return ErrnoStatus(errno, absl::StrCat("letting the held process ", pid, " go on"));
  return SendPacket(peer.get(), R"({"type":"continue"})");
}

}  // namespace rekindle::ckpt
