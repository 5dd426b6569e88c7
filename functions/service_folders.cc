#include "functions/service_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::functions {

absl::Status MakeFolder(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("making folder ", path));
  }
  if (::chmod(path.c_str(), mode) != 0)
    return ErrnoStatus(errno, absl::StrCat("opening the way into ", path));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> MakeFolderFor(const std::string& path, const Owner& owner) {
  if (::mkdir(path.c_str(), 0700) != 0) return ErrnoStatus(errno, absl::StrCat("making folder ", path));
  RK_ASSIGN_OR_RETURN(UniqueFd folder, OpenFile(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (owner.uid != ::geteuid() && ::fchown(folder.get(), owner.uid, owner.gid) != 0)
    return ErrnoStatus(errno, absl::StrCat("giving ", path, " to user ", owner.uid));
  return folder;
}

}  // namespace rekindle::functions
