// Small file-system helpers with errors that name the path. All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace rekindle {

// open(2) with O_CLOEXEC added.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode = 0600);

// A regular file for reading, without waiting. Not valid: it can't be opened, or is something else, which is
// not opened since that could do something (a device, a FIFO).
UniqueFd OpenRegularFile(const std::string& path);

// The whole file; for files of /proc too (whose size is not known beforehand).
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Where a symbolic link leads, such as one of /proc.
absl::StatusOr<std::string> ReadLink(const std::string& path);

// Reads or writes exactly `size` bytes, restarting after short transfers and EINTR; what is written to a full
// pipe waits for room, if it is set not to wait (O_NONBLOCK) too. `what` names the object in errors.
absl::Status ReadFully(int fd, void* data, size_t size, absl::string_view what);
absl::Status WriteFully(int fd, const void* data, size_t size, absl::string_view what);

// Writes `content` to a temporary name, syncs it, renames it to `path` and syncs the directory: after a crash
// `path` is either the old file or the new one.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content, mode_t mode = 0600);
// The same without syncing: it holds when this process dies, not when power is lost. For what a reboot ends
// anyway.
absl::Status ReplaceFile(const std::string& path, absl::string_view content, mode_t mode = 0600);

// After this the names in the folder outlive a loss of power. Empty: the working directory.
absl::Status SyncFolder(const std::string& path);

// mkdir -p; directories that it makes get `mode`.
absl::Status MakeDirectories(const std::string& path, mode_t mode = 0700);

// The names in a directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);
// The same of an open one; from its beginning, wherever `folder` is. `path`: for errors.
absl::StatusOr<std::vector<std::string>> ListOpenDirectory(int folder, const std::string& path);

// Removes a file or a whole tree; a path that is not there is no error. Does not follow symbolic links. Works
// with no descriptor left, too.
absl::Status RemoveTree(const std::string& path);

bool PathExists(const std::string& path);

// In bytes; 0 when there is no such file.
uint64_t FileSize(const std::string& path);

// Do both paths lead to one file or folder? False also where that can't be looked at.
bool IsSameFile(const std::string& one, const std::string& other);

// Is the opened file still the one at this path? False also where that can't be looked at.
bool IsFileAt(const UniqueFd& file, const std::string& path);

// When the file was made, in nanoseconds since the Unix epoch. 0: its file system does not tell, or it is not
// there. `folder` and `flags` are those of statx(2).
int64_t BornUnixNanos(int folder, const std::string& path, int flags);

// Opens a file, which is made when it is not there and which nobody else may open, and takes flock's
// `operation` on it for as long as the descriptor is open. Unavailable when it must not wait (LOCK_NB) and
// would have to.
absl::StatusOr<UniqueFd> LockFile(const std::string& path, int operation);

// Takes flock's `operation` (LOCK_SH or LOCK_EX) on an opened file as soon as it can be had. False: another
// has had it for as long as `patience`. `path`: for errors.
absl::StatusOr<bool> LockWithin(const UniqueFd& file, int operation, absl::Duration patience,
                                absl::string_view path);

// The same for as long as it takes.
absl::Status AwaitLock(const UniqueFd& file, int operation, absl::string_view path);

// Makes a file that has its name only once it is locked, which it is for as long as the descriptor is open:
// one that nobody has locked was left by a process that died.
absl::StatusOr<UniqueFd> MakeLockedFile(const std::string& path, absl::string_view content);

// A directory that is removed with all it holds when this goes out of scope. Movable.
class TemporaryDirectory {
 public:
  // Makes `parent`/`prefix`XXXXXX, mode 0700.
  static absl::StatusOr<TemporaryDirectory> Make(const std::string& parent, absl::string_view prefix);
  TemporaryDirectory(TemporaryDirectory&& other) noexcept;
  TemporaryDirectory& operator=(TemporaryDirectory&& other) noexcept;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }
  // Gives up ownership: the directory stays.
  std::string Release();

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace rekindle
