#include "dedup_store/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::store {

int OpenOwnFile(const std::string& path, int flags) {
  const int opened = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (opened >= 0 || errno != EWOULDBLOCK) return opened;
  // Another has a lease of it, and is asked to give it up. Only what is held, and a file, is waited for.
  const UniqueFd held(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat info;
  if (!held.valid() || ::fstat(held.get(), &info) != 0) return -1;
  if (!S_ISREG(info.st_mode)) {
    errno = S_ISLNK(info.st_mode) ? ELOOP : S_ISDIR(info.st_mode) ? EISDIR : ENXIO;
    return -1;
  }
  return ::open(absl::StrCat("/proc/self/fd/", held.get()).c_str(), flags | O_NOCTTY | O_CLOEXEC);
}

absl::Status CheckIsRegular(int error, int fd, const std::string& path) {
  struct stat info;
  const char* what = nullptr;
  if (error == ELOOP) {
    what = "a symbolic link";
  } else if (error == EISDIR) {
    what = "a folder";
  } else if (error == ENXIO) {
    what = "a FIFO or socket";
  } else if (error == 0 && ::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
    what = S_ISDIR(info.st_mode) ? "a folder" : S_ISFIFO(info.st_mode) ? "a FIFO" : "a device";
  }
  if (what == nullptr) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, " is ", what,
                   ", where the store has a file of its own: somebody has put it there. "
                   "Put the file back, or remove what is there"));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t most) {
  const int opened = OpenOwnFile(path, O_RDONLY);
  const int error = opened < 0 ? errno : 0;
  const UniqueFd fd(opened);
  RK_RETURN_IF_ERROR(CheckIsRegular(error, fd.get(), path));
  if (!fd.valid()) return ErrnoStatus(error, absl::StrCat("opening ", path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > most) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", bytes, " bytes, and one that Rekindle has written ", most, " at the most"));
  }
  std::string content(bytes, '\0');
  RK_RETURN_IF_ERROR(ReadFully(fd.get(), content.data(), content.size(), path));
  return content;
}

}  // namespace rekindle::store
