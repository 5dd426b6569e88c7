#include "base/opened_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle {
namespace {

absl::StatusOr<struct statx> Look(int folder, const char* path, int flags, absl::string_view what) {
  struct statx info;
  if (::statx(folder, path, flags, STATX_BASIC_STATS | STATX_BTIME, &info) != 0)
    return ErrnoStatus(errno, absl::StrCat("looking at ", what));
  return info;
}

InodeIdentity IdentityIn(const struct statx& info) {
  InodeIdentity identity;
  identity.device = ::makedev(info.stx_dev_major, info.stx_dev_minor);
  identity.inode = info.stx_ino;
  if ((info.stx_mask & STATX_BTIME) != 0)
    identity.born_ns = int64_t{info.stx_btime.tv_sec} * 1'000'000'000 + info.stx_btime.tv_nsec;
  return identity;
}

int AccessIn(uint64_t flags) {
  if ((flags & O_PATH) != 0) return 0;
  switch (flags & O_ACCMODE) {
    case O_RDONLY:
      return R_OK;
    case O_WRONLY:
      return W_OK;
    default:
      return R_OK | W_OK;
  }
}

class Collector {
 public:
  explicit Collector(pid_t pid) : pid_(pid), process_(absl::StrCat("/proc/", pid)) {}

  absl::Status AddDescriptors() {
    RK_ASSIGN_OR_RETURN(const std::vector<ForeignDescriptor> descriptors, ForeignDescriptorsOf(pid_));
    for (const ForeignDescriptor& descriptor : descriptors) {
      const std::string link = descriptor.link();
      RK_ASSIGN_OR_RETURN(std::string name, ReadLink(link));
      // Sockets, pipes and the like have none.
      if (!absl::StartsWith(name, "/")) continue;
      RK_ASSIGN_OR_RETURN(const int access, AccessToldBy(descriptor.fdinfo()));
      RK_RETURN_IF_ERROR(Add(link, std::move(name), access));
    }
    return absl::OkStatus();
  }

  absl::Status AddFolders() {
    for (const char* folder : {"/cwd", "/root"}) {
      RK_ASSIGN_OR_RETURN(std::string name, ReadLink(process_ + folder));
      RK_RETURN_IF_ERROR(Add(process_ + folder, std::move(name), X_OK));
    }
    RK_ASSIGN_OR_RETURN(std::string program, ReadLink(process_ + "/exe"));
    return Add(process_ + "/exe", std::move(program), X_OK);
  }

  absl::Status AddMappings() {
    RK_ASSIGN_OR_RETURN(const std::vector<FileMapping> mappings, FileMappingsOf(pid_));
    std::set<std::pair<absl::string_view, int>> seen;
    for (const FileMapping& mapping : mappings) {
      if (!seen.emplace(mapping.device_and_inode, mapping.access).second) continue;
      RK_ASSIGN_OR_RETURN(std::string name, ReadLink(mapping.link));
      RK_RETURN_IF_ERROR(Add(mapping.link, std::move(name), mapping.access));
    }
    return absl::OkStatus();
  }

  std::vector<OpenedFile> Take() { return std::move(files_); }

 private:
  absl::Status Add(const std::string& link, std::string name, int access) {
    RK_ASSIGN_OR_RETURN(const struct statx info, Look(AT_FDCWD, link.c_str(), 0, link));
    if (!S_ISREG(info.stx_mode) && !S_ISDIR(info.stx_mode) && !S_ISFIFO(info.stx_mode))
      return absl::OkStatus();
    files_.push_back(
        {link, std::move(name), IdentityIn(info), info.stx_mode, info.stx_nlink, info.stx_uid, access});
    return absl::OkStatus();
  }

  const pid_t pid_;
  const std::string process_;
  std::vector<OpenedFile> files_;
};

}  // namespace

std::string ForeignDescriptor::link() const { return absl::StrCat("/proc/", pid, "/fd/", number); }

std::string ForeignDescriptor::fdinfo() const { return absl::StrCat("/proc/", pid, "/fdinfo/", number); }

absl::StatusOr<std::vector<ForeignDescriptor>> ForeignDescriptorsOf(pid_t pid) {
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      ListDirectory(absl::StrCat("/proc/", pid, "/fd")));
  std::vector<ForeignDescriptor> descriptors;
  for (const std::string& name : names) {
    if (int number = 0; absl::SimpleAtoi(name, &number)) descriptors.push_back({pid, number});
  }
  return descriptors;
}

absl::StatusOr<std::vector<OpenedFile>> FilesOpenedBy(pid_t pid, OpenedFilesOf which) {
  Collector collector(pid);
  RK_RETURN_IF_ERROR(collector.AddDescriptors());
  RK_RETURN_IF_ERROR(collector.AddFolders());
  if (which == OpenedFilesOf::kMappingsToo) RK_RETURN_IF_ERROR(collector.AddMappings());
  return collector.Take();
}

// "7f00-8000 rw-s 00000000 00:1b 7      /dev/shm/x"
absl::StatusOr<std::vector<FileMapping>> FileMappingsOf(pid_t pid, MappingsOf which) {
  const std::string process = absl::StrCat("/proc/", pid);
  RK_ASSIGN_OR_RETURN(const std::string text, ReadFile(process + "/maps"));
  std::vector<FileMapping> mappings;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // Of thousands few are shared.
    if (const size_t kind = line.find(' ') + 4;
        which == MappingsOf::kSharedFiles && (kind >= line.size() || line[kind] != 's')) {
      continue;
    }
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (fields.size() < 6 || fields[1].size() < 4 || fields[4] == "0") continue;
    const std::vector<absl::string_view> range = absl::StrSplit(fields[0], '-');
    uint64_t start = 0, end = 0;
    if (range.size() != 2 || !absl::SimpleHexAtoi(range[0], &start) || !absl::SimpleHexAtoi(range[1], &end))
      return absl::InternalError(absl::StrCat(process, "/maps can't be read: ", line));
    // A program need not be readable to be run; what is private is not written to.
    const bool shared = fields[1][3] == 's', written = fields[1][1] == 'w';
    const int access = !shared ? X_OK : written ? R_OK | W_OK : R_OK;
    // The kernel pads the numbers in the list, but not in the links' names.
    mappings.push_back({absl::StrCat(process, "/map_files/", absl::Hex(start), "-", absl::Hex(end)),
                        absl::StrCat(fields[3], " ", fields[4]), shared, access});
  }
  return mappings;
}

// "pos:\t0\nflags:\t0100002\n…", the flags being octal.
absl::StatusOr<int> AccessToldBy(const std::string& fdinfo) {
  RK_ASSIGN_OR_RETURN(const std::string text, ReadFile(fdinfo));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "flags:")) continue;
    return AccessIn(std::strtoull(std::string(line).c_str(), nullptr, 8));
  }
  return absl::InternalError(absl::StrCat(fdinfo, " does not tell how the file is open"));
}

absl::StatusOr<InodeIdentity> IdentityOf(int fd) {
  RK_ASSIGN_OR_RETURN(const struct statx info, Look(fd, "", AT_EMPTY_PATH, "an open file"));
  return IdentityIn(info);
}

absl::StatusOr<int> AccessOf(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "looking at an open file");
  return AccessIn(static_cast<uint64_t>(flags));
}

}  // namespace rekindle
