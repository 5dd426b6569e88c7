#include "restore/socket_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/status.h"
#include "restore/compatibility.h"

namespace rekindle::restore {
namespace {

// Of a folder: what others give away with it is nothing that runs.
constexpr mode_t kKeptBits = 03777;

absl::Status WithRights(const std::optional<Owner>& user, const std::function<absl::Status()>& work) {
  return user ? WithFileRightsOf(*user, work) : work();
}

std::string Above(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }
std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Anybody may make a folder there, and nobody may remove another's.
bool IsForAll(const struct stat& folder) {
  return (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
}

// Such file systems are new with each boot of a machine or a container.
bool IsMadeAnew(uint64_t file_system) {
  return file_system == TMPFS_MAGIC || file_system == RAMFS_MAGIC || file_system == OVERLAYFS_SUPER_MAGIC;
}

// Calls visit(entry's name) for each but "." and "..".
void ForEachEntry(UniqueFd folder, const std::function<void(const char*)>& visit) {
  DIR* entries = ::fdopendir(folder.get());
  if (entries == nullptr) return;
  (void)folder.Release();
  while (const dirent* entry = ::readdir(entries)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(entry->d_name);
  }
  ::closedir(entries);
}

void RemoveSockets(int above, const std::string& name) {
  UniqueFd folder(::openat(above, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) return;
  const int at = folder.get();  // open until the last one was visited
  ForEachEntry(std::move(folder), [at](const char* entry) {
    struct stat info;
    if (::fstatat(at, entry, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(info.st_mode))
      (void)::unlinkat(at, entry, 0);
  });
}

}  // namespace

// One call of Make().
class SocketFolderMaker {
 public:
  SocketFolderMaker(const v1::JobManifest& manifest, const std::optional<Owner>& user, SocketFolders* result)
      : user_(user), result_(*result) {
    for (const v1::SocketFolder& folder : manifest.socket_folders()) recorded_[folder.path()] = &folder;
    // A file system that has no device of its own may get another number at each boot.
    const std::string boot = ThisBootId();
    same_boot_ = !boot.empty() && absl::StartsWith(manifest.job_id(), absl::StrCat(boot, "/"));
  }

  absl::Status Make(const std::string& root) {
    RK_ASSIGN_OR_RETURN(root_, OpenFile(root, O_PATH | O_DIRECTORY));
    RK_RETURN_IF_ERROR(Look());
    if (missing_.empty()) return absl::OkStatus();
    return WithRights(user_, [this]() -> absl::Status {
      for (const auto& [path, folder] : missing_) RK_RETURN_IF_ERROR(MakeOne(*folder));
      return absl::OkStatus();
    });
  }

 private:
  using Folder = std::shared_ptr<const UniqueFd>;

  // With our own rights, which may be root's: what is there, be it out of the user's reach, is not made.
  absl::Status Look() {
    std::map<std::string, struct stat> there;
    for (const auto& [path, folder] : recorded_) {
      const std::string above = Above(path);
      if (missing_.contains(above)) {
        missing_[path] = folder;
        continue;
      }
      const UniqueFd place = FollowInRoot(root_.get(), path, O_DIRECTORY);
      struct stat info;
      if (!place.valid() || ::fstat(place.get(), &info) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) missing_[path] = folder;
        continue;
      }
      there[path] = info;
      const auto found = there.find(above);
      if (found != there.end() && IsForAll(found->second))
        RK_RETURN_IF_ERROR(CheckOwner(*folder, info.st_uid));
    }
    return absl::OkStatus();
  }

  // Whoever owns the folder can put his own socket in the place of the job's.
  absl::Status CheckOwner(const v1::SocketFolder& folder, uid_t now) const {
    if (now == 0 || now == ::geteuid() || (user_ && now == user_->uid)) return absl::OkStatus();
    if (!folder.gone() && now == folder.uid()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(What(folder), " is one of uid ", now,
                     " now, who was not its owner when the image was taken: remove it, then restore again"));
  }

  absl::Status MakeOne(const v1::SocketFolder& folder) {
    Folder& above = opened_[Above(folder.path())];
    if (above == nullptr) {
      UniqueFd place = FollowInRoot(root_.get(), Above(folder.path()), O_DIRECTORY);
      if (!place.valid()) return CanNotBeMade(folder, errno, -1);
      if (!MayBeBelow(folder, place.get())) {
        return absl::FailedPreconditionError(absl::StrCat(
            What(folder), " is gone, and it may lie on a file system that is not mounted now: ", kMakeFolder,
            AsItWas(folder)));
      }
      above = std::make_shared<const UniqueFd>(std::move(place));
    }
    if (WasMounted(folder)) {
      return absl::FailedPreconditionError(
          absl::StrCat(What(folder), " is gone, and a file system was mounted there: ", kMakeFolder));
    }
    const std::string name = NameOf(folder.path());
    const bool made = ::mkdirat(above->get(), name.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) return CanNotBeMade(folder, errno, above->get());
    if (made) result_.made_.push_back({above, name, folder.gone()});
    UniqueFd opened(::openat(above->get(), name.c_str(),
                             (made ? O_RDONLY : O_PATH) | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    // A file, or a link: one that leads somewhere would have been found.
    if (!opened.valid() || (made && !GiveAway(folder, opened.get()))) {
      return absl::FailedPreconditionError(absl::StrCat(
          What(folder), " is gone, and something else has its name now: remove that, then restore again"));
    }
    const auto below = missing_.lower_bound(folder.path() + "/");
    if (below != missing_.end() && Above(below->first) == folder.path())
      opened_[folder.path()] = std::make_shared<const UniqueFd>(std::move(opened));
    return absl::OkStatus();
  }

  // What should lie on a file system that is not mounted now must not get another place. `above` is there.
  bool MayBeBelow(const v1::SocketFolder& folder, int above) const {
    struct stat info;
    struct statfs file_system;
    if (!MayComeBack(above)) return true;
    const auto found = recorded_.find(Above(folder.path()));
    if (found == recorded_.end() || ::fstat(above, &info) != 0 || ::fstatfs(above, &file_system) != 0)
      return false;
    const v1::SocketFolder& before = *found->second;
    if (before.gone()) return true;
    if (static_cast<uint64_t>(file_system.f_type) != before.file_system()) return false;
    return IsMadeAnew(before.file_system()) || info.st_ino == before.inode() ||
           (same_boot_ && info.st_dev == before.device());
  }

  bool WasMounted(const v1::SocketFolder& folder) const {
    const auto above = recorded_.find(Above(folder.path()));
    return above != recorded_.end() && !folder.gone() && folder.device() != above->second->device();
  }

  // False: it is not the one that was made, which whoever may change the folder above can have exchanged.
  static bool GiveAway(const v1::SocketFolder& folder, int fd) {
    bool empty = true;
    UniqueFd listed(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!listed.valid()) return false;
    ForEachEntry(std::move(listed), [&](const char*) { empty = false; });
    if (!empty || folder.gone()) return empty;
    const bool owned = ::fchown(fd, folder.uid(), folder.gid()) == 0;
    (void)::fchmod(fd, folder.mode() & (owned ? kKeptBits : 0700));
    return true;
  }

  // `above`: -1: it can't be entered.
  absl::Status CanNotBeMade(const v1::SocketFolder& folder, int error, int above) const {
    const absl::Status why = ErrnoStatus(error, absl::StrCat("can't be made again", WithWhoseRights()));
    const bool tells = absl::IsPermissionDenied(why) || absl::IsResourceExhausted(why);
    const char* cure = above >= 0 && !MayComeBack(above) ? "make that folder" : kMakeFolder;
    return absl::Status(
        tells ? why.code() : absl::StatusCode::kFailedPrecondition,
        absl::StrCat(What(folder), " is gone, and ", why.message(), "; ", cure, AsItWas(folder)));
  }

  std::string WithWhoseRights() const {
    return user_ ? absl::StrCat(" with the rights of uid ", user_->uid) : "";
  }

  static std::string What(const v1::SocketFolder& folder) {
    return absl::StrCat("the folder ", folder.path(), ", which leads to a Unix socket of the job,");
  }

  static std::string AsItWas(const v1::SocketFolder& folder) {
    if (folder.gone()) return "";
    return absl::StrFormat(" (it was one of uid %u, gid %u, with mode %04o)", folder.uid(), folder.gid(),
                           folder.mode());
  }

  const std::optional<Owner>& user_;
  SocketFolders& result_;
  bool same_boot_ = false;
  UniqueFd root_;
  std::map<std::string, const v1::SocketFolder*> recorded_;
  std::map<std::string, const v1::SocketFolder*> missing_;  // those above first
  std::map<std::string, Folder> opened_;                    // with the user's rights
};

absl::StatusOr<SocketFolders> SocketFolders::Make(const v1::JobManifest& manifest, const std::string& root,
                                                  const std::optional<Owner>& user, Names names) {
  SocketFolders folders;
  if (manifest.socket_folders().empty()) return folders;
  folders.user_ = user;
  folders.names_ = names;
  RK_RETURN_IF_ERROR(SocketFolderMaker(manifest, user, &folders).Make(root));
  return folders;
}

SocketFolders& SocketFolders::operator=(SocketFolders&& other) noexcept {
  if (this == &other) return *this;
  Remove(made_);
  user_ = std::move(other.user_);
  names_ = other.names_;
  made_ = std::exchange(other.made_, {});
  return *this;
}

SocketFolders::~SocketFolders() { Remove(made_); }

void SocketFolders::RemovePassing() {
  if (names_ == Names::kOfCopies) return;
  std::vector<Made> passing;
  for (const Made& folder : made_) {
    if (folder.passing) passing.push_back(folder);
  }
  Remove(passing);
  std::erase_if(made_, [](const Made& folder) { return folder.passing; });
}

void SocketFolders::Remove(const std::vector<Made>& folders) const {
  if (folders.empty()) return;
  const absl::Status done = WithRights(user_, [&] {
    for (auto it = folders.rbegin(); it != folders.rend(); ++it) {
      if (names_ == Names::kOfOneJob) RemoveSockets(it->above->get(), it->name);
      (void)::unlinkat(it->above->get(), it->name.c_str(), AT_REMOVEDIR);
    }
    return absl::OkStatus();
  });
  if (!done.ok()) Log(LogLevel::kWarning, absl::StrCat("removing folders of sockets: ", done.message()));
}

}  // namespace rekindle::restore
