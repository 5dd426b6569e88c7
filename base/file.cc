#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/children.h"
#include "base/deadline.h"
#include "base/lock_error.h"
#include "base/log.h"
#include "base/status.h"

namespace rekindle {
namespace {

// By a process with descriptors of its own: here none is left to look into folders.
bool RemoveTreeElsewhere(const std::string& path) {
  const char* argv[] = {"rm", "-rf", "--", path.c_str(), nullptr};
  pid_t pid = -1;
  {
    MakingChild making;
    if (::posix_spawn(&pid, "/bin/rm", nullptr, nullptr, const_cast<char**>(argv), environ) != 0)
      return false;
    NoteChild(pid);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return status == 0;
}

// Whoever made a pipe, such as Node.js, may want no waiting of its own. One that is full holds us up as any
// other does. False: it isn't such a one.
bool AwaitRoom(int fd) {
  if ((::fcntl(fd, F_GETFL) & O_NONBLOCK) == 0) {
    errno = EAGAIN;
    return false;
  }
  pollfd room{fd, POLLOUT, 0};
  return ::poll(&room, 1, -1) >= 0 || errno == EINTR;
}

// Locked, where the file system can: one that nobody has locked was left by a writer that died. `*path` is
// the beginning of its name, and then the name.
absl::StatusOr<UniqueFd> MakeTemporary(std::string* path, mode_t mode) {
  for (;; absl::StrAppend(path, "x")) {
    RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(*path, O_WRONLY | O_CREAT | O_TRUNC, mode));
    // Whoever looks for what was left behind may have come before the lock, and is to have that one.
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? IsFileAt(fd, *path) : errno != EWOULDBLOCK) return fd;
  }
}

// The error of a file that did not get its room, which says where there has to be some.
absl::Status NoRoomFor(const std::string& path, const absl::Status& status) {
  const int error = ErrnoOf(status);
  if (error != ENOSPC && error != EDQUOT) return status;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return WithMessage(
      status, absl::StrCat("writing ", path, ": ", ::strerrordesc_np(error),
                           error == EDQUOT ? ": the disk quota in " : ": the file system is full that holds ",
                           folder.empty() ? "the working directory" : folder,
                           error == EDQUOT ? " is used up" : "", ". Free some space there"));
}

// Through a temporary name beside it.
absl::Status Replace(const std::string& path, absl::string_view content, mode_t mode, bool sync) {
  std::string temporary = absl::StrCat(path, ".tmp-", ::getpid(), "-", reinterpret_cast<uintptr_t>(&content));
  absl::Status status = [&]() -> absl::Status {
    RK_ASSIGN_OR_RETURN(const UniqueFd fd, MakeTemporary(&temporary, mode));
    RK_RETURN_IF_ERROR(WriteFully(fd.get(), content.data(), content.size(), temporary));
    if (sync && ::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", temporary));
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("renaming ", temporary, " to ", path));
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) ::unlink(temporary.c_str());
  return NoRoomFor(path, status);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  return UniqueFd(fd);
}

UniqueFd OpenRegularFile(const std::string& path) {
  absl::StatusOr<UniqueFd> place = OpenFile(path, O_PATH);
  struct stat info;
  if (!place.ok() || ::fstat(place->get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return UniqueFd(
      ::open(absl::StrCat("/proc/self/fd/", place->get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string content;
  size_t used = 0;
  for (;;) {
    content.resize(std::max<size_t>(4096, used * 2));
    ssize_t n = ::read(fd.get(), content.data() + used, content.size() - used);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("reading ", path));
    }
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  content.resize(used);
  return content;
}

absl::StatusOr<std::string> ReadLink(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  if (length < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  return std::string(target, static_cast<size_t>(length));
}

absl::Status ReadFully(int fd, void* data, size_t size, absl::string_view what) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    ssize_t n = ::read(fd, at, size);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("reading ", what));
    }
    if (n == 0)
      return absl::DataLossError(absl::StrCat("reading ", what, ": it ends ", size, " bytes too early"));
    at += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status WriteFully(int fd, const void* data, size_t size, absl::string_view what) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = ::write(fd, at, size);
    if (n < 0) {
      if (errno == EINTR || (errno == EAGAIN && AwaitRoom(fd))) continue;
      return ErrnoStatus(errno, absl::StrCat("writing ", what));
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, absl::string_view content, mode_t mode) {
  return Replace(path, content, mode, /*sync=*/false);
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content, mode_t mode) {
  RK_RETURN_IF_ERROR(Replace(path, content, mode, /*sync=*/true));
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

absl::Status SyncFolder(const std::string& path) {
  const std::string folder = path.empty() ? "." : path;
  RK_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(folder, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("syncing the folder ", folder));
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, mode_t mode) {
  if (path.empty()) return absl::InvalidArgumentError("making a folder: the path is empty");
  size_t at = 0;
  while (at != std::string::npos) {
    at = path.find('/', at + 1);
    std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("making folder ", part));
    }
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("making folder ", path));
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("making folder ", path, ": a file of that name is in the way"));
  }
  return absl::OkStatus();
}

namespace {

using FolderStream = std::unique_ptr<DIR, int (*)(DIR*)>;

// `stream`: null, with errno: it can't be listed.
absl::StatusOr<std::vector<std::string>> AllNames(const FolderStream& stream, const std::string& path) {
  if (!stream) return ErrnoStatus(errno, absl::StrCat("listing ", path));
  std::vector<std::string> all;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (!entry) {
      if (errno != 0) return ErrnoStatus(errno, absl::StrCat("listing ", path));
      break;
    }
    absl::string_view name = entry->d_name;
    if (name != "." && name != "..") all.emplace_back(name);
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  return AllNames(FolderStream(::opendir(path.c_str()), ::closedir), path);
}

absl::StatusOr<std::vector<std::string>> ListOpenDirectory(int folder, const std::string& path) {
  UniqueFd own(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const FolderStream stream(own.valid() ? ::fdopendir(own.get()) : nullptr, ::closedir);
  if (stream) (void)own.Release();
  return AllNames(stream, path);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error.value() == EMFILE && RemoveTreeElsewhere(path)) return absl::OkStatus();
  if (error) return ErrnoStatus(error.value(), absl::StrCat("removing ", path));
  return absl::OkStatus();
}

bool PathExists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

uint64_t FileSize(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

bool IsSameFile(const std::string& one, const std::string& other) {
  struct stat first, second;
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

bool IsFileAt(const UniqueFd& file, const std::string& path) {
  struct stat opened, there;
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

int64_t BornUnixNanos(int folder, const std::string& path, int flags) {
  struct statx info;
  if (::statx(folder, path.c_str(), flags, STATX_BTIME, &info) != 0) return 0;
  if ((info.stx_mask & STATX_BTIME) == 0) return 0;
  return int64_t{info.stx_btime.tv_sec} * 1'000'000'000 + info.stx_btime.tv_nsec;
}

namespace {

// Locks are held for milliseconds, unless whoever has one is stopped or its disk hangs.
constexpr absl::Duration kSilentWait = absl::Seconds(3);
constexpr absl::Duration kLookAtLockEvery = absl::Milliseconds(1);

// Who has flock()ed the file: "process 1234 (rekindled)", as far as it is known.
std::string HolderOfLock(int file) {
  struct stat info;
  if (::fstat(file, &info) != 0) return "another process";
  // "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5310821 0 EOF"; of those who wait "1: -> FLOCK …". File systems
  // have device numbers of their own.
  const std::string inode = absl::StrCat(":", info.st_ino);
  for (absl::string_view line : absl::StrSplit(ReadFile("/proc/locks").value_or(""), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    pid_t pid = 0;
    if (words.size() < 6 || words[1] != "FLOCK" || !absl::EndsWith(words[5], inode)) continue;
    if (!absl::SimpleAtoi(words[4], &pid) || pid <= 0) continue;
    std::string name =
        ReadFile(absl::StrCat("/proc/", pid, "/comm")).value_or("it has handed it on and ended");
    absl::StripTrailingAsciiWhitespace(&name);
    return absl::StrCat("process ", pid, " (", name, ")");
  }
  return "another process";
}

}  // namespace

absl::StatusOr<bool> LockWithin(const UniqueFd& file, int operation, absl::Duration patience,
                                absl::string_view path) {
  const Deadline deadline(patience);
  while (::flock(file.get(), operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return LockError(errno, path);
    if (deadline.passed()) return false;
    absl::SleepFor(kLookAtLockEvery);
  }
  return true;
}

absl::Status AwaitLock(const UniqueFd& file, int operation, absl::string_view path) {
  while (::flock(file.get(), operation) != 0) {
    if (errno != EINTR) return LockError(errno, path);
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> LockFile(const std::string& path, int operation) {
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT, 0600));
  const bool waits = (operation & LOCK_NB) == 0;
  RK_ASSIGN_OR_RETURN(const bool locked,
                      LockWithin(fd, operation, waits ? kSilentWait : absl::ZeroDuration(), path));
  if (locked) return fd;
  if (!waits) return absl::UnavailableError(absl::StrCat(path, " is locked by another"));
  Log(LogLevel::kWarning, absl::StrCat("waits for the lock on ", path, ", which ", HolderOfLock(fd.get()),
                                       " has: one that is stopped keeps it until it goes on or ends"));
  RK_RETURN_IF_ERROR(AwaitLock(fd, operation, path));
  return fd;
}

absl::StatusOr<UniqueFd> MakeLockedFile(const std::string& path, absl::string_view content) {
  const std::string unlocked = absl::StrCat(path, ".new");
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(unlocked, O_RDWR | O_CREAT | O_TRUNC));
  RK_RETURN_IF_ERROR(WriteFully(fd.get(), content.data(), content.size(), unlocked));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || ::rename(unlocked.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("locking ", unlocked));
  }
  return fd;
}

absl::StatusOr<TemporaryDirectory> TemporaryDirectory::Make(const std::string& parent,
                                                            absl::string_view prefix) {
  std::string path = absl::StrCat(parent, "/", prefix, "XXXXXX");
  if (!::mkdtemp(path.data()))
    return ErrnoStatus(errno, absl::StrCat("making a temporary folder in ", parent));
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(other.Release()) {}

TemporaryDirectory& TemporaryDirectory::operator=(TemporaryDirectory&& other) noexcept {
  if (this != &other) {
    if (!path_.empty()) RemoveTree(path_).IgnoreError();
    path_ = other.Release();
  }
  return *this;
}

TemporaryDirectory::~TemporaryDirectory() {
  if (!path_.empty()) RemoveTree(path_).IgnoreError();
}

std::string TemporaryDirectory::Release() { return std::exchange(path_, std::string()); }

}  // namespace rekindle
