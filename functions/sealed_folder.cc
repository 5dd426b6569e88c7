#include "functions/sealed_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::functions {
namespace {

constexpr char kAccessList[] = "system.posix_acl_access";
// Its owner may have put in more than was copied, where it was not sealed.
constexpr int kMostSealedLevels = 256;
constexpr mode_t kReads = 4, kEnters = 1;

// As acl(5) has it on disk, in the byte order of all machines that Rekindle runs on.
struct Entry {
  uint16_t tag, permissions;
  uint32_t id;
};
constexpr uint32_t kVersion = 2, kNobody = ~uint32_t{0};
constexpr uint16_t kOfOwner = 0x01, kOfUser = 0x02, kOfGroup = 0x04, kMask = 0x10, kOfOthers = 0x20;
struct AccessList {
  uint32_t version = kVersion;
  std::array<Entry, 5> entries;
};
static_assert(sizeof(AccessList) == 4 + 5 * 8);

absl::Status SealingError(int error, const std::string& path) {
  return ErrnoStatus(error, absl::StrCat("closing ", path, " to changes"));
}

// Each folder is sealed before what is in it is looked at: from then on nothing new can come into it.
absl::Status SealContents(int folder, const std::string& path, uid_t owner, int levels) {
  if (levels == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("closing ", path, " to changes: it has too many folders in one another"));
  }
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      ListDirectory(absl::StrCat("/proc/self/fd/", folder)));
  for (const std::string& name : names) {
    const std::string entry_path = absl::StrCat(path, "/", name);
    // What was looked at is what is changed, whatever has its name by then.
    const UniqueFd entry(::openat(folder, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!entry.valid() && errno == ENOENT) continue;
    struct stat info;
    if (!entry.valid() || ::fstat(entry.get(), &info) != 0) return SealingError(errno, entry_path);
    if (info.st_uid == owner) {
      if (::fchownat(entry.get(), "", 0, 0, AT_EMPTY_PATH) != 0) return SealingError(errno, entry_path);
      if (!S_ISLNK(info.st_mode) &&
          ::chmod(absl::StrCat("/proc/self/fd/", entry.get()).c_str(), SealedMode(info.st_mode)) != 0) {
        return SealingError(errno, entry_path);
      }
    }
    if (!S_ISDIR(info.st_mode)) continue;
    const UniqueFd below(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below.valid()) return SealingError(errno, entry_path);
    RK_RETURN_IF_ERROR(SealContents(below.get(), entry_path, owner, levels - 1));
  }
  return absl::OkStatus();
}

}  // namespace

mode_t SealedMode(mode_t mode) {
  const mode_t granted = mode >> 6 & (kReads | kEnters);
  return granted << 6 | granted << 3 | granted;
}

absl::Status SealFolder(const std::string& folder, const Owner& owner) {
  if (owner.uid == ::geteuid()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd root, OpenFile(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  AccessList list;
  list.entries = {{{kOfOwner, 7, kNobody},
                   {kOfUser, kReads | kEnters, owner.uid},
                   {kOfGroup, 0, kNobody},
                   {kMask, kReads | kEnters, kNobody},
                   {kOfOthers, 0, kNobody}}};
  const auto let_in = [&] { return ::fsetxattr(root.get(), kAccessList, &list, sizeof list, 0) == 0; };
  // It is his again, who could not reach what he runs, and is sealed another time.
  const auto give_back = [&] {
    (void)::fchmod(root.get(), 0700);
    (void)::fchown(root.get(), owner.uid, owner.gid);
  };
  if (!let_in()) {
    if (errno != EOPNOTSUPP) return SealingError(errno, folder);
    // It may have been sealed elsewhere, and copied here.
    struct stat info;
    if (::fstat(root.get(), &info) == 0 && info.st_uid == 0) give_back();
    return absl::UnimplementedError(
        absl::StrCat("the file system of ", folder, " has no access control lists"));
  }
  // Nobody gets in before all of it is sealed.
  if (::fremovexattr(root.get(), kAccessList) != 0 || ::fchown(root.get(), 0, 0) != 0 ||
      ::fchmod(root.get(), 0700) != 0) {
    return SealingError(errno, folder);
  }
  absl::Status sealed = SealContents(root.get(), folder, owner.uid, kMostSealedLevels);
  if (sealed.ok() && !let_in()) sealed = SealingError(errno, folder);
  if (!sealed.ok()) give_back();
  return sealed;
}

absl::Status SealOrGive(const std::string& folder, const Owner& owner) {
  const absl::Status sealed = SealFolder(folder, owner);
  if (!absl::IsUnimplemented(sealed)) return sealed;
  Log(LogLevel::kWarning,
      absl::StrCat(sealed.message(),
                   ", so the code of functions that lies there can be changed by its owner (uid ", owner.uid,
                   "), and grow: mount it with them (-o acl), or give rekindled another --store"));
  if (::chown(folder.c_str(), owner.uid, owner.gid) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("giving ", folder, " to user ", owner.uid));
}

bool IsSealed(const std::string& folder, const Owner& owner) {
  struct stat info;
  if (owner.uid == ::geteuid()) return true;
  return ::lstat(folder.c_str(), &info) == 0 && info.st_uid == ::geteuid() &&
         ReaderOf(folder).value_or(::geteuid()) == owner.uid;
}

absl::StatusOr<uid_t> ReaderOf(const std::string& folder) {
  struct stat info;
  if (::lstat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", folder));
  AccessList list;
  if (S_ISDIR(info.st_mode) &&
      ::lgetxattr(folder.c_str(), kAccessList, &list, sizeof list) == static_cast<ssize_t>(sizeof list)) {
    for (const Entry& entry : list.entries) {
      if (entry.tag == kOfUser) return entry.id;
    }
  }
  return info.st_uid;
}

}  // namespace rekindle::functions
