#include "ckpt/outside_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/opened_files.h"
#include "base/process_stat.h"
#include "base/unique_fd.h"
#include "criu/job_namespaces.h"

namespace rekindle::ckpt {
namespace {

std::set<uint32_t> MountNumbers(const std::string& process) {
  std::set<uint32_t> numbers;
  const std::string mounts = ReadFile(process + "/mountinfo").value_or("");
  for (absl::string_view line : absl::StrSplit(mounts, '\n')) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(line.substr(0, line.find(' ')), &number)) numbers.insert(number);
  }
  return numbers;
}

bool IsFoundBy(const std::string& root, const std::string& path, const struct stat& file) {
  const absl::StatusOr<UniqueFd> folder = OpenFile(root, O_PATH | O_DIRECTORY);
  if (!folder.ok()) return false;
  const UniqueFd found = FollowInRoot(folder->get(), path, O_NOFOLLOW);
  struct stat info;
  return found.valid() && ::fstat(found.get(), &info) == 0 && info.st_dev == file.st_dev &&
         info.st_ino == file.st_ino;
}

}  // namespace

std::map<std::string, std::string> FilesOfOutsideMounts(const std::vector<pid_t>& pids) {
  std::map<std::string, std::string> files;
  const auto mounts_of = [](absl::string_view process) {
    return ReadLink(absl::StrCat("/proc/", process, "/ns/mnt")).value_or("");
  };
  const std::string root = absl::StrCat(pids.front());
  if (mounts_of(root) == mounts_of("self") || !criu::HasOurPids(pids.front())) return files;
  const std::set<uint32_t> mounts = MountNumbers("/proc/" + root);
  for (const pid_t pid : pids) {
    const std::string process = absl::StrCat("/proc/", pid);
    for (const ForeignDescriptor& descriptor :
         ForeignDescriptorsOf(pid).value_or(std::vector<ForeignDescriptor>())) {
      const std::string link = descriptor.link();
      const std::string path = ReadLink(link).value_or("");
      struct stat info;
      if (!absl::StartsWith(path, "/") || ::stat(link.c_str(), &info) != 0) continue;
      if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode) && !S_ISCHR(info.st_mode)) continue;
      uint32_t mount = 0;
      const std::string told = ReadFile(descriptor.fdinfo()).value_or("");
      if (!absl::SimpleAtoi(StatusField(told, "mnt_id"), &mount) || mounts.contains(mount)) continue;
      if (IsFoundBy(process + "/root", path, info))
        files[absl::StrCat("file[", absl::Hex(mount), ":", absl::Hex(info.st_ino), "]")] = path;
    }
  }
  return files;
}

}  // namespace rekindle::ckpt
