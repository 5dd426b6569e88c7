#include "cli/target_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

constexpr int kLinksFollowed = 40;  // as many as the kernel follows

// With its slash; empty: where we are.
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool MayFollow(const struct stat& link, const std::string& folder) {
  struct stat in;
  if (link.st_uid == ::geteuid() || ::stat(folder.empty() ? "." : folder.c_str(), &in) != 0) return true;
  const bool anybodys = (in.st_mode & S_ISVTX) && (in.st_mode & S_IWOTH);
  return !anybodys || in.st_uid == link.st_uid;
}

// The descriptor that a link of procfs (/proc/self/fd/1) stands for, if it is ours.
int OwnDescriptor(const std::string& path) {
  int number = -1;
  struct stat there, ours;
  if (!absl::SimpleAtoi(path.substr(path.rfind('/') + 1), &number) || ::stat(path.c_str(), &there) != 0 ||
      ::fstat(number, &ours) != 0 || there.st_dev != ours.st_dev || there.st_ino != ours.st_ino) {
    return -1;
  }
  return number;
}

}  // namespace

absl::StatusOr<Target> FindTarget(const std::string& name) {
  const std::string what = absl::StrCat("writing ", name);
  Target target{name};
  for (int links = 0;; ++links) {
    const UniqueFd at(::open(target.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!at.valid() && errno == ENOENT) return target;
    struct stat info;
    if (!at.valid() || ::fstat(at.get(), &info) != 0) return ErrnoStatus(errno, what);
    if (!S_ISLNK(info.st_mode)) {
      target.in_place = !S_ISREG(info.st_mode);
      return target;
    }
    struct statfs fs;
    if (::fstatfs(at.get(), &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC) {
      target.in_place = true;
      target.descriptor = OwnDescriptor(target.path);
      return target;
    }
    if (links == kLinksFollowed) return ErrnoStatus(ELOOP, what);
    char text[PATH_MAX];
    const ssize_t length = ::readlinkat(at.get(), "", text, sizeof text);
    if (length <= 0) return ErrnoStatus(length < 0 ? errno : ENOENT, what);
    std::string next(text, static_cast<size_t>(length));
    const std::string folder = FolderOf(target.path);
    if (!MayFollow(info, folder)) {
      return absl::PermissionDeniedError(
          absl::StrCat(what, ": the symbolic link ", target.path, " was made by uid ", info.st_uid,
                       " in a folder where anybody may; name the file itself (it leads to ", next, ")"));
    }
    target.path = absl::StartsWith(next, "/") ? std::move(next) : folder + next;
  }
}

absl::StatusOr<UniqueFd> OpenInPlace(const Target& target) {
  if (target.descriptor < 0) return OpenFile(target.path, O_WRONLY | O_NOCTTY);
  UniqueFd fd(::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", target.path));
  return fd;
}

absl::StatusOr<TargetFile> TargetFile::Create(const std::string& path, mode_t mode) {
  std::string partial = absl::StrCat(path, ".partial-", ::getpid());
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(partial, O_WRONLY | O_CREAT | O_EXCL, mode));
  return TargetFile(path, std::move(partial), std::move(fd));
}

TargetFile::TargetFile(std::string path, std::string partial, UniqueFd fd)
    : path_(std::move(path)), partial_(std::move(partial)), fd_(std::move(fd)) {}

TargetFile::TargetFile(TargetFile&& other) noexcept
    : path_(std::move(other.path_)), partial_(std::exchange(other.partial_, "")), fd_(std::move(other.fd_)) {}

TargetFile::~TargetFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

absl::Status TargetFile::Write(absl::string_view data) {
  return WriteFully(fd_.get(), data.data(), data.size(), path_);
}

absl::Status TargetFile::Complete() {
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("writing ", path_));
  if (::rename(partial_.c_str(), path_.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("naming ", path_));
  partial_.clear();
  return SyncFolder(FolderOf(path_));
}

}  // namespace rekindle::cli
