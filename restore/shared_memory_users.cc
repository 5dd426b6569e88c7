#include "restore/shared_memory_users.h"

#include <sys/sysmacros.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/proc_text.h"
#include "base/process_stat.h"

namespace rekindle::restore {
pid_t SharedMemoryUsers::UserOf(const struct stat& file) {
  if (!read_) ReadAll();
  read_ = true;
  auto it = users_.find({file.st_dev, file.st_ino});
  return it == users_.end() ? 0 : it->second;
}

void SharedMemoryUsers::ReadAll() {
  for (pid_t pid : ListProcesses()) Read(pid);
}

void SharedMemoryUsers::Read(pid_t pid) {
  // Of all, though the maps of some are long: RssShmem of /proc/PID/status, which Linux counts by the way,
  // may say 0 for a process that has touched up to some dozens of such pages (by thread before 6.2, by
  // processor until 6.17).
  ForEachLineOf(absl::StrCat("/proc/", pid, "/maps"), [&](absl::string_view line) {
    if (!absl::StrContains(line, " /dev/shm/")) return true;
    // START-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (fields.size() < 6) return true;
    const std::vector<absl::string_view> device = absl::StrSplit(fields[3], ':');
    uint32_t major = 0, minor = 0;
    ino_t inode = 0;
    if (device.size() == 2 && absl::SimpleHexAtoi(device[0], &major) &&
        absl::SimpleHexAtoi(device[1], &minor) && absl::SimpleAtoi(fields[4], &inode)) {
      users_[{::makedev(major, minor), inode}] = pid;
    }
    return true;
  });
}

}  // namespace rekindle::restore
