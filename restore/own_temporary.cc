#include "restore/own_temporary.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr char kFirst[] = "/tmp", kSecond[] = "/var/tmp", kMemoryFolder[] = "/dev/shm";

bool LiesInThem(absl::string_view path) {
  return absl::StartsWith(path, absl::StrCat(kFirst, "/")) ||
         absl::StartsWith(path, absl::StrCat(kSecond, "/"));
}
bool LiesInSharedMemory(absl::string_view path) {
  return absl::StartsWith(path, absl::StrCat(kMemoryFolder, "/"));
}

// As our mounts make them, or a link does.
bool AreOne() { return IsSameFile(kFirst, kSecond); }

absl::Status Bind(const std::string& from, const std::string& to) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("binding ", from, " to ", to));
}

absl::Status MountEmpty(const char* folder, uint64_t bytes) {
  const std::string size = bytes == kKernelsShare ? "" : absl::StrCat(",size=", bytes);
  if (::mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, absl::StrCat("mode=1777", size).c_str()) == 0)
    return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("mounting a ", folder, " of its own"));
}

absl::Status Resize(const char* folder, uint64_t bytes) {
  if (bytes == 0 || bytes == kKernelsShare || !PathExists(folder)) return absl::OkStatus();
  const std::string options = absl::StrCat("size=", bytes);
  if (::mount("tmpfs", folder, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, options.c_str()) == 0)
    return absl::OkStatus();
  if (errno == EINVAL) {
    return absl::ResourceExhaustedError(
        absl::StrCat("what lies in its ", folder, " from the start takes more than the ", FormatBytes(bytes),
                     " that it may have there: give it more memory"));
  }
  return ErrnoStatus(errno, absl::StrCat("giving a ", folder, " of its own another size"));
}

// Of `mounted`, what a mount of it forbids besides, which may not be allowed again. What users bring has no
// rights of others anyway.
unsigned long FlagsLike(const struct statvfs& mounted) {
  constexpr std::pair<unsigned long, unsigned long> kToStay[] = {{ST_NOEXEC, MS_NOEXEC},
                                                                 {ST_NOATIME, MS_NOATIME},
                                                                 {ST_NODIRATIME, MS_NODIRATIME},
                                                                 {ST_RELATIME, MS_RELATIME}};
  unsigned long flags = MS_NOSUID | MS_NODEV;
  for (const auto& [there, flag] : kToStay) {
    if ((mounted.f_flag & there) != 0) flags |= flag;
  }
  return flags;
}

UniqueFd OpenPlace(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::string PathOf(const UniqueFd& place) { return absl::StrCat("/proc/thread-self/fd/", place.get()); }

// Whoever owns the folder above it can put something else under its name at any moment: what is mounted, and
// on what, goes by descriptors.
absl::Status MakeOneReadOnly(const std::string& folder) {
  const UniqueFd place = OpenPlace(folder);
  if (!place.valid() && (errno == ELOOP || errno == ENOTDIR)) {
    return absl::FailedPreconditionError(
        "it was replaced by something that is no folder: deploy the function anew ('rekindle fn deploy')");
  }
  struct statvfs mounted;
  struct stat wanted, found;
  if (!place.valid() || ::fstatvfs(place.get(), &mounted) != 0 || ::fstat(place.get(), &wanted) != 0)
    return ErrnoStatus(errno, "opening it");
  if ((mounted.f_flag & ST_RDONLY) != 0) return absl::OkStatus();
  if (::mount(PathOf(place).c_str(), PathOf(place).c_str(), nullptr, MS_BIND, nullptr) != 0)
    return ErrnoStatus(errno, "binding it to itself");
  // The descriptor from before stands for what the mount covers.
  const UniqueFd top = OpenPlace(folder);
  if (!top.valid() || ::fstat(top.get(), &found) != 0) return ErrnoStatus(errno, "opening it again");
  if (found.st_dev != wanted.st_dev || found.st_ino != wanted.st_ino)
    return absl::AbortedError("it was replaced meanwhile");
  const unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | FlagsLike(mounted);
  if (::mount(nullptr, PathOf(top).c_str(), nullptr, flags, nullptr) != 0)
    return ErrnoStatus(errno, "mounting it so");
  return absl::OkStatus();
}

// Others may enter them, whatever the umask says: what is kept says for itself who may.
absl::Status MakeWayTo(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos;) {
    at = path.find('/', at + 1);
    const std::string part = path.substr(0, at);
    const bool made = ::mkdir(part.c_str(), 0755) == 0;
    if ((!made && errno != EEXIST) || (made && ::chmod(part.c_str(), 0755) != 0))
      return ErrnoStatus(errno, absl::StrCat("making ", part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MountOwnTemporary(const OwnTemporary& temporary) {
  std::vector<std::pair<std::string, UniqueFd>> kept;
  const bool files = temporary.bytes > 0 && PathExists(kFirst);
  const bool memory = temporary.shared_memory > 0 && PathExists(kMemoryFolder);
  for (const std::string& path : temporary.keep) {
    if (!(files && LiesInThem(path)) && !(memory && LiesInSharedMemory(path))) continue;
    UniqueFd folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (folder.valid()) kept.emplace_back(path, std::move(folder));
  }
  if (files) {
    RK_RETURN_IF_ERROR(MountEmpty(kFirst, temporary.bytes));
    if (PathExists(kSecond) && !AreOne()) RK_RETURN_IF_ERROR(Bind(kFirst, kSecond));
  }
  if (memory) RK_RETURN_IF_ERROR(MountEmpty(kMemoryFolder, temporary.shared_memory));
  for (const auto& [path, folder] : kept) {
    RK_RETURN_IF_ERROR(MakeWayTo(path));
    RK_RETURN_IF_ERROR(Bind(PathOf(folder), path));
  }
  return absl::OkStatus();
}

absl::Status MakeReadOnly(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    RK_RETURN_IF_ERROR(Annotate(MakeOneReadOnly(folder), absl::StrCat("making ", folder, " read-only")));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> MountsWithOwnTemporary(const OwnTemporary& temporary) {
  absl::Status status;
  UniqueFd mounts;
  const auto make = [&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
      status = ErrnoStatus(errno, "making a process mounts of its own, which needs CAP_SYS_ADMIN");
      return;
    }
    status = MountOwnTemporary(temporary);
    if (status.ok()) status = MakeReadOnly(temporary.read_only);
    mounts.Reset(::open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC));
    if (status.ok() && !mounts.valid()) status = ErrnoStatus(errno, "opening /proc/thread-self/ns/mnt");
  };
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
    std::thread(make).join();
    return absl::OkStatus();
  }));
  RK_RETURN_IF_ERROR(status);
  return mounts;
}

absl::Status ResizeOwnTemporary(uint64_t bytes, uint64_t shared_memory) {
  RK_RETURN_IF_ERROR(Resize(kFirst, bytes));
  return Resize(kMemoryFolder, shared_memory);
}

bool LiesInOwnTemporary(absl::string_view path, const std::vector<std::string>& keep) {
  return (LiesInThem(path) || LiesInSharedMemory(path)) &&
         std::none_of(keep.begin(), keep.end(), [path](absl::string_view kept) {
           absl::string_view rest = path;
           return absl::ConsumePrefix(&rest, kept) && (rest.empty() || rest[0] == '/');
         });
}

}  // namespace rekindle::restore
