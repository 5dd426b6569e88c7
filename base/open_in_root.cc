#include "base/open_in_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle {
namespace {

absl::StatusOr<UniqueFd> Open(int folder, const std::string& path, uint64_t bounds) {
  open_how how = {};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = bounds | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd place(static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
  if (place.valid()) return place;
  if (errno == ELOOP || errno == EXDEV) {
    return absl::NotFoundError(absl::StrCat(
        "opening ", path,
        errno == ELOOP ? ": there is a symbolic link on the way" : ": it leads out of the folder"));
  }
  return ErrnoStatus(errno, absl::StrCat("opening ", path));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenInRoot(const std::string& root, const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not an absolute name"));
  }
  RK_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFile(root, O_PATH | O_DIRECTORY));
  return Open(folder.get(), path, RESOLVE_IN_ROOT);
}

absl::StatusOr<UniqueFd> OpenBeneath(int folder, const std::string& name) {
  return Open(folder, name, RESOLVE_BENEATH);
}

namespace {

// This process's /proc/PID/fd, and PID: a forked child's is another one. Not closed.
std::atomic<int64_t> own_descriptors{-1};

int64_t Pack(int folder) { return int64_t{::getpid()} << 32 | folder; }

// -1: not remembered.
int OwnDescriptors() {
  const int64_t remembered = own_descriptors;
  return remembered >= 0 && remembered >> 32 == ::getpid() ? static_cast<int>(remembered & 0x7fffffff) : -1;
}

}  // namespace

void RememberOwnDescriptors() {
  int64_t known = own_descriptors;
  if (OwnDescriptors() >= 0) return;
  const int folder = ::open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  if (!own_descriptors.compare_exchange_strong(known, Pack(folder))) ::close(folder);  // another thread has
}

UniqueFd Reopen(int fd, int flags) {
  const int folder = OwnDescriptors();
  const std::string name = absl::StrCat(folder < 0 ? "/proc/self/fd/" : "", fd);
  return UniqueFd(::openat(folder < 0 ? AT_FDCWD : folder, name.c_str(), flags | O_CLOEXEC));
}

absl::StatusOr<UniqueFd> OpenFileAt(int place) {
  struct stat info;
  if (::fstat(place, &info) != 0) return ErrnoStatus(errno, "looking at a file");
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError("it is no regular file");
  UniqueFd file = Reopen(place, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file.valid()) return ErrnoStatus(errno, "opening it");
  return file;
}

}  // namespace rekindle
