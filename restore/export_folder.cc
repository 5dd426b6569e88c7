#include "restore/export_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr char kInventory[] = "inventory.img";
constexpr char kUnfinishedInventory[] = "inventory.img.unfinished";

std::string NameNow(const std::string& name) { return name == kInventory ? kUnfinishedInventory : name; }

absl::Status CheckIsTrusted(int folder, const std::string& path, uid_t caller) {
  struct stat info;
  if (::fstat(folder, &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  const bool known_owner = info.st_uid == ::geteuid() || info.st_uid == caller;
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (known_owner && !others_write) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      known_owner ? "others may write to the folder"
                  : absl::StrCat("the folder belongs to uid ", info.st_uid),
      ", and could put other files in the place of the image's: name one that does not exist yet",
      known_owner ? ", or take that right away (chmod go-w)" : ""));
}

}  // namespace

absl::StatusOr<ExportFolder> ExportFolder::Open(const std::string& path, uid_t caller) {
  const bool existed = PathExists(path);
  RK_RETURN_IF_ERROR(MakeDirectories(path));
  auto opened = OpenFile(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  struct stat info;
  if (!opened.ok() && ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError("that is a symbolic link: name the folder that it leads to");
  }
  RK_RETURN_IF_ERROR(opened.status());
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      ListDirectory(absl::StrCat("/proc/self/fd/", opened->get())));
  if (!names.empty()) {
    return absl::FailedPreconditionError("the folder is not empty; give a new one");
  }
  if (existed) RK_RETURN_IF_ERROR(CheckIsTrusted(opened->get(), path, caller));
  return ExportFolder(path, *std::move(opened), !existed);
}

ExportFolder::~ExportFolder() {
  if (!folder_.valid()) return;
  for (const std::string& name : names_) ::unlinkat(folder_.get(), name.c_str(), 0);
  if (made_) ::rmdir(path_.c_str());
}

std::string ExportFolder::PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

absl::StatusOr<UniqueFd> ExportFolder::Make(const std::string& name) {
  const std::string now = NameNow(name);
  UniqueFd file(
      ::openat(folder_.get(), now.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("making ", PathOf(now)));
  names_.push_back(now);
  return file;
}

absl::StatusOr<UniqueFd> ExportFolder::OpenMade(const std::string& name) const {
  UniqueFd file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", PathOf(name)));
  return file;
}

bool ExportFolder::Has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), NameNow(name)) != names_.end();
}

absl::StatusOr<std::string> ExportFolder::Read(const std::string& name) const {
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenMade(NameNow(name)));
  return ReadFile(absl::StrCat("/proc/self/fd/", file.get()));
}

absl::Status ExportFolder::Replace(const std::string& name, absl::string_view content) {
  auto there = std::find(names_.begin(), names_.end(), NameNow(name));
  if (there != names_.end()) {
    if (::unlinkat(folder_.get(), there->c_str(), 0) != 0)
      return ErrnoStatus(errno, absl::StrCat("replacing ", PathOf(name)));
    names_.erase(there);
  }
  RK_ASSIGN_OR_RETURN(UniqueFd file, Make(name));
  return WriteFully(file.get(), content.data(), content.size(), PathOf(name));
}

absl::Status ExportFolder::Finish() {
  const auto sync = [this](int fd, absl::string_view name) {
    return ::fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("syncing ", PathOf(name)));
  };
  for (const std::string& name : names_) {
    RK_ASSIGN_OR_RETURN(UniqueFd file, OpenMade(name));
    RK_RETURN_IF_ERROR(sync(file.get(), name));
  }
  RK_RETURN_IF_ERROR(sync(folder_.get(), ""));
  auto inventory = std::find(names_.begin(), names_.end(), kUnfinishedInventory);
  if (inventory != names_.end()) {
    if (::renameat(folder_.get(), kUnfinishedInventory, folder_.get(), kInventory) != 0)
      return ErrnoStatus(errno, absl::StrCat("naming ", PathOf(kInventory)));
    *inventory = kInventory;
    RK_RETURN_IF_ERROR(sync(folder_.get(), ""));
  }
  folder_.Reset();
  return absl::OkStatus();
}

}  // namespace rekindle::restore
