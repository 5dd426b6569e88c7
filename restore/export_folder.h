// The folder that an export is written to, which may lie where others may write. Every file in it is new, and
// in the very folder that was looked at, whatever becomes of its name. inventory.img, without which CRIU
// restores nothing, gets its name when all the rest is durable.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// Owned by one thread at a time. When it goes and was not finished, so do the files, and the folder if it was
// made.
class ExportFolder {
 public:
  // Makes the folder if there is none. FailedPrecondition: it is not empty, is a symbolic link, or belongs to
  // somebody else than us and `caller`, or others may write to it.
  static absl::StatusOr<ExportFolder> Open(const std::string& path, uid_t caller);
  ExportFolder(ExportFolder&&) = default;
  ExportFolder& operator=(ExportFolder&&) = delete;
  ~ExportFolder();

  // A new file, for writing. AlreadyExists: something is in the way.
  absl::StatusOr<UniqueFd> Make(const std::string& name);
  absl::StatusOr<std::string> Read(const std::string& name) const;
  // One that was made, or a new one.
  absl::Status Replace(const std::string& name, absl::string_view content);
  bool Has(const std::string& name) const;
  absl::Status Finish();

  // For messages.
  std::string PathOf(absl::string_view name) const;

 private:
  ExportFolder(std::string path, UniqueFd folder, bool made)
      : path_(std::move(path)), folder_(std::move(folder)), made_(made) {}
  absl::StatusOr<UniqueFd> OpenMade(const std::string& name) const;

  std::string path_;
  UniqueFd folder_;  // not valid: moved from, or finished
  bool made_;
  std::vector<std::string> names_;  // as they are now
};

}  // namespace rekindle::restore
