#include "restore/job_logs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

bool IsReplacedByLog(const v1::StdioSlot& slot) {
  return slot.fd() > 0 && slot.kind() == "file" && slot.resource().empty() && slot.path().size() > 1;
}

std::string ResourceOfFile(const v1::StdioSlot& slot) { return slot.path().substr(1); }

std::set<std::string> FilesReplacedByLog(const v1::JobManifest& manifest) {
  std::set<std::string> paths;
  for (const v1::StdioSlot& slot : manifest.stdio()) {
    if (IsReplacedByLog(slot)) paths.insert(slot.path());
  }
  return paths;
}

std::set<std::string> LogsOf(const v1::JobManifest& manifest) {
  std::set<std::string> paths = {manifest.log()};
  for (const v1::StdioSlot& slot : manifest.stdio()) {
    if (slot.fd() > 0 && slot.kind() == "file") paths.insert(slot.path());
  }
  return paths;
}

absl::Status AppendToLogs(int root, const v1::JobManifest& manifest) {
  for (const v1::StdioSlot& slot : manifest.stdio()) {
    if (slot.kind() != "pipe" || slot.fd() == 0) continue;
    UniqueFd log(static_cast<int>(::syscall(SYS_pidfd_getfd, root, slot.fd(), 0)));
    struct stat info;
    if (!log.valid() || ::fstat(log.get(), &info) != 0) {
      return ErrnoStatus(errno, absl::StrCat("looking at descriptor ", slot.fd(), " of the restored job"));
    }
    const int flags = ::fcntl(log.get(), F_GETFL);
    if (!S_ISREG(info.st_mode) || (flags & O_APPEND) != 0) continue;
    // Both descriptors are of one open file.
    if (::fcntl(log.get(), F_SETFL, flags | O_APPEND) != 0) {
      return ErrnoStatus(errno, "letting the restored job append to its log");
    }
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
