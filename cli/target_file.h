// Files that the user named and that are to be written.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

// Where a name leads. Symbolic links stay: what they lead to is written, also where nothing is yet.
struct Target {
  std::string path;
  // Nothing that another file could take the place of: a pipe, a device, a descriptor of a process
  // (/dev/stdout), a folder.
  bool in_place = false;
  int descriptor = -1;  // of this process, where it is one
};

// PermissionDenied: a link of somebody else, where anybody may make some; as the kernel has it with
// fs.protected_symlinks, which this can't be left to.
absl::StatusOr<Target> FindTarget(const std::string& name);

// Opens what is written in place. A descriptor of this process is written where it stands.
absl::StatusOr<UniqueFd> OpenInPlace(const Target& target);

// A file that is there in whole or not at all: beside `path`, which is no symbolic link, until it is
// complete.
class TargetFile {
 public:
  static absl::StatusOr<TargetFile> Create(const std::string& path, mode_t mode);
  TargetFile(TargetFile&& other) noexcept;
  TargetFile& operator=(TargetFile&&) = delete;
  ~TargetFile();  // leaves nothing unless it is complete

  absl::Status Write(absl::string_view data);
  // Once: syncs it and gives it its name.
  absl::Status Complete();

 private:
  TargetFile(std::string path, std::string partial, UniqueFd fd);

  std::string path_, partial_;  // `partial_` empty: gone
  UniqueFd fd_;
};

}  // namespace rekindle::cli
