#include "restore/pager_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "restore/lazy_task.h"

namespace rekindle::restore {
namespace {

constexpr int kLookAgainMs = 1;

bool IsUserfaultfd(int fd) {
  char target[64];
  const ssize_t n = ::readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof target);
  return n > 0 && std::string(target, static_cast<size_t>(n)) == "anon_inode:[userfaultfd]";
}

bool IsKeeper(int fd) {
  sockaddr_un name{};
  socklen_t size = sizeof name;
  int type = 0;
  socklen_t type_size = sizeof type;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 && name.sun_family == AF_UNIX &&
         size == offsetof(sockaddr_un, sun_path) &&
         ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) == 0 && type == SOCK_SEQPACKET;
}

std::vector<int> OpenDescriptors() {
  std::vector<int> open;
  DIR* folder = ::opendir("/proc/self/fd");
  // Without /proc nothing can be told apart: all of it is held.
  if (folder == nullptr) return open;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder)) open.push_back(fd);
  }
  ::closedir(folder);
  return open;
}

void WaitForEnd(int process) {
  pollfd entry{process, POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
}

// The other ends close when all processes of their sandboxes have been killed.
void WaitForHangups(const std::vector<int>& sockets) {
  std::vector<pollfd> entries;
  for (int fd : sockets) entries.push_back({fd, 0, 0});
  while (!entries.empty()) {
    ::poll(entries.data(), entries.size(), -1);
    std::erase_if(entries, [](const pollfd& entry) { return entry.revents != 0; });
  }
}

[[noreturn]] void Guard(int pager) {
  ::prctl(PR_SET_NAME, kPagerGuardName);
  ::setsid();
  for (int signal : {SIGINT, SIGHUP, SIGTERM}) ::signal(signal, SIG_IGN);
  WaitForEnd(pager);
  // Nobody else has the table any more.
  std::vector<int> keepers, userfaultfds;
  for (int fd : OpenDescriptors()) {
    if (IsUserfaultfd(fd)) {
      userfaultfds.push_back(fd);
    } else if (IsKeeper(fd)) {
      keepers.push_back(fd);
    } else {
      ::close(fd);
    }
  }
  for (int fd : keepers) ::shutdown(fd, SHUT_WR);
  WaitForHangups(keepers);
  // Of a sandbox whose init was killed, the kernel ends the others after it has closed the init's sockets,
  // and no descriptor tells when.
  while (!std::all_of(userfaultfds.begin(), userfaultfds.end(), LazyTask::NobodyHasMemoryBehind)) {
    ::poll(nullptr, 0, kLookAgainMs);
  }
  ::_exit(0);
}

}  // namespace

absl::Status StartPagerGuard() {
  UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self.valid()) return ErrnoStatus(errno, "guarding the pager's descriptors");
  // The C library knows no fork that leaves the table shared.
  const long made = ::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (made < 0) return ErrnoStatus(errno, "guarding the pager's descriptors");
  if (made == 0) Guard(self.get());
  (void)self.Release();  // the guard's
  return absl::OkStatus();
}

}  // namespace rekindle::restore
