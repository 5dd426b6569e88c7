#include "base/local_locks.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/mountinfo.h"

namespace rekindle {
namespace {

struct LocalLocks {
  const char* file_system;  // how its type begins
  std::vector<absl::string_view> options;
};

// nfs(5), mount.lustre(8), mount.cifs(8), and the kernel's documentation of OCFS2 and GFS2.
const std::vector<LocalLocks>& KnownLocalLocks() {
  static const auto& known =
      *new std::vector<LocalLocks>{{"nfs", {"nolock", "local_lock=all", "local_lock=flock"}},
                                   {"lustre", {"localflock"}},
                                   {"cifs", {"nobrl"}},
                                   {"smb", {"nobrl"}},
                                   {"ocfs2", {"localflocks"}},
                                   {"gfs2", {"localflocks"}}};
  return known;
}

}  // namespace

std::string LocalLocksOption(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return "";
  return LocalLocksOptionIn(ReadFile("/proc/self/mountinfo").value_or(""),
                            absl::StrCat(major(info.st_dev), ":", minor(info.st_dev)));
}

std::string LocalLocksOptionIn(absl::string_view mountinfo, absl::string_view device) {
  for (const MountLine& mount : ParseMountinfo(mountinfo)) {
    if (mount.device != device) continue;
    for (const LocalLocks& known : KnownLocalLocks()) {
      if (!absl::StartsWith(mount.type, known.file_system)) continue;
      for (absl::string_view option : known.options) {
        if (absl::c_linear_search(mount.options, option)) return std::string(option);
      }
    }
  }
  return "";
}

}  // namespace rekindle
