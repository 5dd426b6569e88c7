#include "restore/opened_files_check.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/opened_files.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "restore/criu_files.h"

namespace rekindle::restore {
namespace {

// With the rights of the calling thread.
bool MayAccess(int place, const OpenedFile& file) {
  const auto may = [&](int access) {
    return ::syscall(SYS_faccessat2, place, "", access, AT_EACCESS | AT_EMPTY_PATH) == 0;
  };
  if (file.access == X_OK && !S_ISDIR(file.mode)) return may(X_OK) || may(R_OK);
  return may(file.access);
}

// The file systems that memory without a name lies on (shared, of memfd_create or of huge pages): no path
// leads there.
std::set<uint64_t> MemoryDevices() {
  std::set<uint64_t> devices;
  for (const unsigned flags : {MFD_CLOEXEC, MFD_CLOEXEC | MFD_HUGETLB}) {
    const UniqueFd memory(::memfd_create("rekindle", flags));
    if (!memory.valid()) continue;
    if (const auto identity = IdentityOf(memory.get()); identity.ok()) devices.insert(identity->device);
  }
  return devices;
}

constexpr uint64_t kRootOfProc = 1;  // PROC_ROOT_INO of the kernel

class Checker {
 public:
  Checker(const OpenedFilesCheck& check, int root)
      : user_(check.user), root_(root), began_unix_ns_(check.began_unix_ns) {
    for (const v1::OpenedInode& file : check.manifest.opened()) {
      if (file.born_ns() != 0)
        accepted_[{file.device(), file.inode(), file.born_ns()}] |= static_cast<int>(file.access());
    }
  }

  absl::Status AcceptAllOn(const std::string& folder) {
    const UniqueFd place = FollowInRoot(root_, folder, O_DIRECTORY);
    if (!place.valid()) return ErrnoStatus(errno, absl::StrCat("looking at ", folder, " of a copy"));
    RK_ASSIGN_OR_RETURN(const InodeIdentity identity, IdentityOf(place.get()));
    own_.insert(identity.device);
    return absl::OkStatus();
  }
  absl::Status Accept(int fd) {
    RK_ASSIGN_OR_RETURN(const int access, AccessOf(fd));
    return AcceptFor(access, fd);
  }
  absl::Status AcceptFor(int access, int fd) {
    RK_ASSIGN_OR_RETURN(const InodeIdentity identity, IdentityOf(fd));
    accepted_[identity] |= access;
    return absl::OkStatus();
  }

  // With root's rights: what is left to ask the user's rights for.
  absl::Status Add(pid_t process) {
    const std::string own = absl::StrCat("/proc/", process, "/");
    RK_ASSIGN_OR_RETURN(std::vector<OpenedFile> files, FilesOpenedBy(process, OpenedFilesOf::kMappingsToo));
    for (OpenedFile& file : files) {
      if (IsAccepted(file) || memory_.contains(file.identity.device) || own_.contains(file.identity.device)) {
        continue;
      }
      if (!seen_.insert({file.identity, file.access}).second) continue;
      // The process itself, as it sees itself.
      if (absl::StartsWith(file.name, own) && LiesInProc(file)) continue;
      UniqueFd nameless;
      if (file.links == 0) {
        // CRIU has made it from the image.
        if (file.identity.born_ns >= began_unix_ns_) continue;
        RK_ASSIGN_OR_RETURN(nameless, OpenFile(file.link, O_PATH));
      } else if (S_ISDIR(file.mode) && file.identity.inode == kRootOfProc && LiesInProc(file)) {
        // By which CRIU finds the process until it lets go of it. Of a job with mounts of its own it hangs
        // nowhere, and its name, "/", is another's.
        RK_ASSIGN_OR_RETURN(nameless, OpenFile(file.link, O_PATH));
      }
      asked_.push_back({std::move(file), std::move(nameless)});
    }
    return absl::OkStatus();
  }

  // With the user's.
  absl::Status Ask() const {
    for (const Question& question : asked_) {
      if (!MayOpen(question)) return Refusal(question.file);
    }
    return absl::OkStatus();
  }

 private:
  struct Question {
    OpenedFile file;
    UniqueFd nameless;  // the file itself, where no name leads to it
  };

  // For so much as the job had it: what it only read, it must not get for writing under another name.
  bool IsAccepted(const OpenedFile& file) const {
    const auto had = accepted_.find(file.identity);
    if (had == accepted_.end()) return false;
    const bool runs = file.access == X_OK && !S_ISDIR(file.mode);
    return runs ? (had->second & (R_OK | X_OK)) != 0 : (file.access & ~had->second) == 0;
  }

  static bool LiesInProc(const OpenedFile& file) {
    struct statfs info;
    return ::statfs(file.link.c_str(), &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
  }

  bool MayOpen(const Question& question) const {
    const OpenedFile& file = question.file;
    if (question.nameless.valid()) return file.owner == user_.uid || MayAccess(question.nameless.get(), file);
    const UniqueFd place = FollowInRoot(root_, file.name, O_NOFOLLOW);
    if (place.valid()) {
      const absl::StatusOr<InodeIdentity> found = IdentityOf(place.get());
      if (found.ok() && *found == file.identity) return MayAccess(place.get(), file);
    }
    // This name of several is gone.
    return absl::EndsWith(file.name, kDeletedSuffix) && file.owner == user_.uid;
  }

  absl::Status Refusal(const OpenedFile& file) const {
    const absl::string_view access = file.access == (R_OK | W_OK) ? "open for reading and writing"
                                     : file.access == W_OK        ? "open for writing"
                                     : S_ISDIR(file.mode)         ? "enter"
                                                                  : "open for reading";
    return absl::PermissionDeniedError(
        absl::StrCat(file.link, " would be ", file.name, ", which user ", user_.uid, " may not ", access,
                     " and which the job did not have when its image was taken: a file or folder of its was "
                     "moved, or replaced by a "
                     "link. Nothing of it has run. Put it back where it was, or give the user that right; an "
                     "administrator who knows "
                     "better restores it with --ignore-mismatch"));
  }

  const Owner& user_;
  const int root_;
  const int64_t began_unix_ns_;
  const std::set<uint64_t> memory_ = MemoryDevices();
  std::set<uint64_t> own_;                 // devices
  std::map<InodeIdentity, int> accepted_;  // with R_OK, W_OK, X_OK
  std::set<std::pair<InodeIdentity, int>> seen_;
  std::vector<Question> asked_;
};

}  // namespace

absl::StatusOr<std::optional<Owner>> UserWithBounds(const store::ImageReader& image,
                                                    const v1::JobManifest& manifest) {
  if (::geteuid() != 0) return std::nullopt;
  RK_ASSIGN_OR_RETURN(const std::string pstree, ReadCriuFile(image, "pstree.img"));
  RK_ASSIGN_OR_RETURN(const std::vector<criu::PstreeEntry> tree, criu::ParsePstree(pstree));
  if (tree.empty()) return absl::DataLossError("the image has no process");
  RK_ASSIGN_OR_RETURN(const std::string core,
                      ReadCriuFile(image, absl::StrCat("core-", tree[0].pid, ".img")));
  RK_ASSIGN_OR_RETURN(Owner user, criu::ParseOwner(core));
  if (user.uid == 0 && manifest.uid() == 0) return std::nullopt;
  if (user.uid == 0) user.uid = manifest.uid();
  return user;
}

absl::StatusOr<std::map<uid_t, pid_t>> UsersOf(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string pstree, ReadCriuFile(image, "pstree.img"));
  RK_ASSIGN_OR_RETURN(const std::vector<criu::PstreeEntry> tree, criu::ParsePstree(pstree));
  std::map<uid_t, pid_t> users;
  for (const criu::PstreeEntry& process : tree) {
    RK_ASSIGN_OR_RETURN(const std::string core,
                        ReadCriuFile(image, absl::StrCat("core-", process.pid, ".img")));
    const absl::StatusOr<Owner> owner = criu::ParseOwner(core);
    if (owner.ok()) users.emplace(owner->uid, process.pid);  // a zombie's says nothing, and it does nothing
  }
  return users;
}

absl::Status CheckAllAreHis(const std::map<uid_t, pid_t>& users, uid_t user) {
  for (const auto& [uid, pid] : users) {
    if (uid == user) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        "its process ", pid, " is of uid ", uid, ", and you are uid ", user, ": only root may have it back"));
  }
  return absl::OkStatus();
}

absl::Status CheckAllAreHis(const store::ImageReader& image, uid_t user) {
  RK_ASSIGN_OR_RETURN(const auto users, UsersOf(image));
  return CheckAllAreHis(users, user);
}

absl::Status CheckOpenedFiles(const OpenedFilesCheck& check) {
  RK_ASSIGN_OR_RETURN(const UniqueFd root, OpenFile(check.root, O_PATH | O_DIRECTORY));
  Checker checker(check, root.get());
  for (const int fd : check.given) RK_RETURN_IF_ERROR(checker.Accept(fd));
  for (const std::string& folder : check.own_folders) RK_RETURN_IF_ERROR(checker.AcceptAllOn(folder));
  if (!check.criu_log.empty()) {
    RK_ASSIGN_OR_RETURN(const UniqueFd log, OpenFile(check.criu_log, O_PATH | O_NOFOLLOW));
    RK_RETURN_IF_ERROR(checker.AcceptFor(W_OK, log.get()));
  }
  for (const pid_t process : check.processes) RK_RETURN_IF_ERROR(checker.Add(process));
  return WithFileRightsOf(check.user, [&checker] { return checker.Ask(); });
}

}  // namespace rekindle::restore
