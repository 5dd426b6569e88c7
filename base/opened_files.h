// The files that a process has: by descriptor, as its folders and its program, and mapped.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// A file, whatever its name; a number that is used again has another birth. `born_ns` 0: the file system does
// not tell.
struct InodeIdentity {
  uint64_t device = 0, inode = 0;
  int64_t born_ns = 0;
  friend auto operator<=>(const InodeIdentity&, const InodeIdentity&) = default;
};

// What the kernel says behind a name that is gone.
inline constexpr absl::string_view kDeletedSuffix = " (deleted)";

struct OpenedFile {
  std::string link;  // "/proc/12/fd/3": leads to the very file, whatever its name leads to now
  std::string name;  // as the kernel tells it: absolute, with " (deleted)" behind one that is gone
  InodeIdentity identity;
  mode_t mode = 0;
  nlink_t links = 0;
  uid_t owner = 0;
  // For what it was needed: R_OK, W_OK or both; X_OK of folders and programs, libraries among them, which the
  // right to read gives too; 0: nothing, it only says where something is.
  int access = 0;
};

enum class OpenedFilesOf { kDescriptorsAndFolders, kMappingsToo };

// Regular files, folders and FIFOs that have or had a name; a file that is mapped several times once for each
// kind of access. An error: a process or one of these can't be looked at, it may have ended. Thread-safe.
absl::StatusOr<std::vector<OpenedFile>> FilesOpenedBy(pid_t pid, OpenedFilesOf which);

// A mapping of a file, `link` being "/proc/12/map_files/7f00-8000"; the access is as of an OpenedFile.
struct FileMapping {
  std::string link;
  std::string device_and_inode;  // as the kernel tells them; of files in layers not those that stat tells
  bool shared = false;
  int access = 0;
};

enum class MappingsOf { kFiles, kSharedFiles };
absl::StatusOr<std::vector<FileMapping>> FileMappingsOf(pid_t pid, MappingsOf which = MappingsOf::kFiles);

// A descriptor of another process.
struct ForeignDescriptor {
  pid_t pid = 0;
  int number = -1;

  std::string link() const;    // "/proc/12/fd/3": leads to the very file, whatever its name leads to now
  std::string fdinfo() const;  // "/proc/12/fdinfo/3"
};

// In no order. An error: it has ended, or may not be looked at. Thread-safe.
absl::StatusOr<std::vector<ForeignDescriptor>> ForeignDescriptorsOf(pid_t pid);

// What a descriptor of ours is, and for what it is open.
absl::StatusOr<InodeIdentity> IdentityOf(int fd);
absl::StatusOr<int> AccessOf(int fd);
// For what a descriptor of another process is open: `fdinfo` is its file "/proc/PID/fdinfo/N".
absl::StatusOr<int> AccessToldBy(const std::string& fdinfo);

}  // namespace rekindle
