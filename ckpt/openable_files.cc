#include "ckpt/openable_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/opened_files.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/criu_files.h"
#include "criu/image_files.h"

namespace rekindle::ckpt {
namespace {

struct NeededFile {
  pid_t pid = 0;
  std::string link;  // to the very file; empty: it is only mapped
  int access = 0;
};

// What CRIU opens by its name. Devices, and what the kernel makes up, it does not, or root may have it.
bool HasName(absl::string_view name) {
  if (!absl::StartsWith(name, "/") || absl::EndsWith(name, kDeletedSuffix)) return false;
  for (const char* other : {"/dev/", "/proc/", "/sys/", "/memfd:", "/SYSV", "/anon_hugepage"}) {
    if (absl::StartsWith(name, other)) return false;
  }
  return true;
}

// By their names, for all that they are needed for. A process that ends meanwhile has none.
std::map<std::string, NeededFile> FilesOf(pid_t pid) {
  std::map<std::string, NeededFile> files;
  const std::string process = absl::StrCat("/proc/", pid);
  const auto add = [&](absl::string_view name, std::string link, int access) {
    if (!HasName(name)) return;
    NeededFile& file = files[std::string(name)];
    file.pid = pid;
    if (file.link.empty()) file.link = std::move(link);
    file.access |= access;
  };
  for (const ForeignDescriptor& descriptor :
       ForeignDescriptorsOf(pid).value_or(std::vector<ForeignDescriptor>())) {
    std::string link = descriptor.link();
    const std::string name = ReadLink(link).value_or("");
    if (!HasName(name)) continue;
    const absl::StatusOr<int> access = AccessToldBy(descriptor.fdinfo());
    // Not one that only says where the file is (O_PATH).
    if (access.ok() && *access != 0) add(name, std::move(link), *access);
  }
  for (const char* own : {"/cwd", "/exe"}) {
    std::string link = process + own;
    const std::string name = ReadLink(link).value_or("");
    add(name, std::move(link), 0);
  }
  // "7f00-8000 rw-s 00000000 00:1b 7      /dev/shm/x"
  const std::string maps = ReadFile(process + "/maps").value_or("");
  for (absl::string_view line : absl::StrSplit(maps, '\n')) {
    const size_t rights = line.find(' '), name = line.find('/');
    if (name == absl::string_view::npos || rights + 4 >= name) continue;
    const bool written = line[rights + 2] == 'w' && line[rights + 4] == 's';
    // Such characters as the kernel writes in another way.
    if (!absl::StrContains(line, '\\')) add(line.substr(name), "", written ? R_OK | W_OK : R_OK);
  }
  return files;
}

// 0, or why the calling thread may not open it, EACCES or EPERM.
int WhyNot(int root, const std::string& name, const NeededFile& file) {
  const UniqueFd place = FollowInRoot(root, name, O_NOFOLLOW);
  if (!place.valid()) return errno == EACCES || errno == EPERM ? errno : 0;
  struct stat here, there;
  if (::fstat(place.get(), &here) != 0 || (!S_ISREG(here.st_mode) && !S_ISDIR(here.st_mode))) return 0;
  const int needed = S_ISDIR(here.st_mode) ? X_OK : R_OK;
  const int access = file.access == 0 ? needed : file.access;
  if (::syscall(SYS_faccessat2, place.get(), "", access, AT_EACCESS | AT_EMPTY_PATH) == 0) return 0;
  const int error = errno;
  if (error != EACCES && error != EPERM) return 0;
  // Another file may have taken its name.
  const bool is_another = !file.link.empty() && ::stat(file.link.c_str(), &there) == 0 &&
                          (there.st_dev != here.st_dev || there.st_ino != here.st_ino);
  return is_another ? 0 : error;
}

const char* CureFor(const NeededFile& file) {
  constexpr uint64_t kNfs = 0x6969, kFuse = 0x65735546, kCifs = 0xff534d42, kSmb2 = 0xfe534d42;
  struct statfs info;
  const bool told = !file.link.empty() && ::statfs(file.link.c_str(), &info) == 0;
  switch (told ? static_cast<uint64_t>(info.f_type) & 0xffffffff : 0) {
    case kNfs:
      return "It is on NFS, which gives root nothing that is not everybody's (root_squash): export it to "
             "this machine with no_root_squash, or let the job have its files elsewhere";
    case kFuse:
      return "It is on FUSE, which gives root nothing: mount it with allow_other (or allow_root), or let the "
             "job have its files elsewhere";
    case kCifs:
    case kSmb2:
      return "It is on SMB, whose mount gives root nothing: mount it with rights for root, or let the job "
             "have its files elsewhere";
    default:
      return "Give Rekindle the rights over it (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; of a file system "
             "of another machine: no_root_squash or the like), or let the job have its files elsewhere";
  }
}

absl::Status Refusal(const std::string& name, const NeededFile& file, int error) {
  const std::string who = ::geteuid() == 0 ? "root" : absl::StrCat("uid ", ::geteuid());
  const bool writes = (file.access & W_OK) != 0;
  return absl::FailedPreconditionError(
      absl::StrCat("capturing process ", file.pid, ": it has ", name, " open", writes ? " for writing" : "",
                   " or mapped, and a restore could not open it again: ", who,
                   ", as whom CRIU opens files, may not (", std::strerror(error), "). ", CureFor(file)));
}

}  // namespace

absl::Status CheckFilesCanBeOpenedAgain(const std::vector<pid_t>& pids) {
  std::set<std::string> asked;  // processes share most of them
  for (const pid_t pid : pids) {
    const absl::StatusOr<UniqueFd> root =
        OpenFile(absl::StrCat("/proc/", pid, "/root"), O_PATH | O_DIRECTORY);
    if (!root.ok()) continue;  // it has ended, which CRIU will say if it matters
    struct stat info;
    if (::fstat(root->get(), &info) != 0) continue;
    const std::string names = absl::StrCat(ReadLink(absl::StrCat("/proc/", pid, "/ns/mnt")).value_or(""), " ",
                                           info.st_dev, " ", info.st_ino, " ");
    for (const auto& [name, file] : FilesOf(pid)) {
      if (!asked.insert(absl::StrCat(names, file.access, name)).second) continue;
      const int error = WhyNot(root->get(), name, file);
      if (error != 0) return Refusal(name, file, error);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNoFileOfThreads(pid_t root, const std::map<std::string, std::string>& criu_files) {
  const absl::string_view opened = ContentOf(criu_files, "files.img");
  if (!absl::StrContains(opened, "/task/")) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::vector<criu::RegularFile> files,
                      criu::ParseRegularFiles(opened, ContentOf(criu_files, "remap-fpath.img")));
  RK_ASSIGN_OR_RETURN(const std::vector<criu::PstreeEntry> tree,
                      criu::ParsePstree(ContentOf(criu_files, "pstree.img")));
  for (const criu::RegularFile& file : files) {
    // "/proc/PID/task/TID/stat"; of the first thread it is there in time.
    const std::vector<absl::string_view> parts = absl::StrSplit(file.path, '/');
    if (parts.size() < 5 || parts[1] != "proc" || parts[3] != "task" || parts[4] == parts[2]) continue;
    pid_t process = 0;
    if (!absl::SimpleAtoi(parts[2], &process)) continue;
    // Of another process, that of a monitoring agent say, it is there as long as that is.
    const bool is_the_jobs = std::any_of(
        tree.begin(), tree.end(), [&](const criu::PstreeEntry& entry) { return entry.pid == process; });
    if (!is_the_jobs && ::access(absl::StrCat("/proc/", root, "/root", file.path).c_str(), F_OK) == 0)
      continue;
    return absl::UnavailableError(
        absl::StrCat("capturing process ", root, ": it had ", file.path,
                     " open, which can't be opened again before that thread is there; try again when it has "
                     "closed it (what looks at its own threads, as psutil does, opens them for a moment)"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
