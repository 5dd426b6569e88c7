#include "daemon/process_info.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

uint64_t ResidentBytes(pid_t pid) {
  absl::StatusOr<std::string> statm = ReadFile(absl::StrCat("/proc/", pid, "/statm"));
  if (!statm.ok()) return 0;
  std::vector<std::string> fields = absl::StrSplit(*statm, ' ');
  uint64_t pages = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &pages)) return 0;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

absl::StatusOr<ProcessInfo> ReadProcessInfo(pid_t pid) {
  std::string folder = absl::StrCat("/proc/", pid);
  struct stat owner;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat.ok() && !absl::IsNotFound(stat.status())) return stat.status();
  if (!stat.ok() || ::stat(folder.c_str(), &owner) != 0) {
    return absl::NotFoundError(
        absl::StrCat("there is no process ", pid, "; `rekindle ps` and `ps` list those there are"));
  }
  ProcessInfo info;
  info.parent = stat->parent;
  info.start_ticks = stat->start_ticks;
  info.uid = owner.st_uid;
  return info;
}

std::string OutputFileOf(pid_t pid) {
  const std::string link = absl::StrCat("/proc/", pid, "/fd/1");
  char path[PATH_MAX];
  struct stat info;
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  if (length <= 0 || ::stat(link.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  return {path, static_cast<size_t>(length)};
}

TreeUse MeasureTree(pid_t root, const ProcessChildren& all) {
  TreeUse use;
  for (pid_t pid : all.Tree(root)) {
    ++use.processes;
    use.resident_bytes += ResidentBytes(pid);
  }
  return use;
}

std::shared_ptr<const ProcessChildren> RecentChildren(absl::Duration age) {
  struct Recent {
    absl::Mutex mutex;
    std::shared_ptr<const ProcessChildren> children ABSL_GUARDED_BY(mutex);
    absl::Time at ABSL_GUARDED_BY(mutex);
  };
  static Recent& recent = *new Recent;
  absl::MutexLock lock(&recent.mutex);
  const absl::Time now = SteadyNow();
  if (recent.children == nullptr || now - recent.at >= age) {
    recent.children = std::make_shared<const ProcessChildren>();
    recent.at = now;
  }
  return recent.children;
}

}  // namespace rekindle::daemon
