#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/parallel.h"
#include "base/random_bytes.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "restore/clone_shared_memory.h"
#include "restore/file_content.h"
#include "restore/file_cut.h"
#include "restore/file_rollback.h"

namespace rekindle::restore {
namespace {

using Report = v1::FileRollback;

constexpr absl::string_view kHalfMade = ".rekindle-new";
constexpr int kNamesTried = 10000;
// That wait for disks.
constexpr size_t kMostThreads = 16;

// What a file is called until it is whole: the same for every attempt, so that the next one removes what an
// interrupted one has left. In a name that leaves no room for the rest, a number stands for its end.
std::string HalfMadeName(absl::string_view name) {
  if (1 + name.size() + kHalfMade.size() <= NAME_MAX) return absl::StrCat(".", name, kHalfMade);
  return absl::StrCat(".", name.substr(0, NAME_MAX / 2), "-", absl::Hex(StableHash(name), absl::kZeroPad16),
                      kHalfMade);
}

// Where somebody else's file has that one, in a folder of all (/tmp): nobody can know it beforehand.
std::string OtherHalfMadeName(absl::string_view name) {
  uint64_t random;
  FillWithRandomBytes(&random, sizeof random);
  return absl::StrCat(".", name.substr(0, NAME_MAX / 2), ".", absl::Hex(random, absl::kZeroPad16), kHalfMade);
}

// What a roll-back has put beside the job's files, and may be removed again.
struct Made {
  const FileAction* action;
  std::string name;
};

class Applier {
 public:
  Applier(const store::ImageReader& image, const WithRights& with_rights, std::vector<FileAction>* plan)
      : image_(image), with_rights_(with_rights), plan_(*plan) {}

  // What leaves the job's files as they are.
  absl::Status Prepare() {
    RK_RETURN_IF_ERROR(CheckRoom());
    for (FileAction& action : plan_) {
      absl::Status status;
      // Of those that are cut off last, too: were there no room for it then, others would have changed.
      if (action.keep_tail) status = KeepTailOf(with_rights_, action);
      if (status.ok() && action.report.action() == Report::MADE_AGAIN) status = MakeAgain(action);
      if (!status.ok()) {
        Undo();
        return AboutFile(status, action);
      }
    }
    const absl::Status synced = ForAll(
        [](const FileAction& action) -> absl::Status {
          if (!action.tails.empty()) RK_RETURN_IF_ERROR(SyncTail(action.tails.back().kept));
          return action.report.action() == Report::MADE_AGAIN ? ToDisk(action) : absl::OkStatus();
        },
        AboutFile);
    if (!synced.ok()) Undo();
    return synced;
  }

  absl::Status Change() {
    for (FileAction& action : plan_) {
      if (!action.rotated.found()) continue;
      if (absl::Status status = GiveNamesBack(action); !status.ok()) {
        RemoveUselessTails(with_rights_, &plan_);
        return Halfway(status, action);
      }
    }
    absl::Status changed = ChangeAll();
    if (changed.ok()) changed = FoldersToDisk();
    if (!changed.ok()) RemoveUselessTails(with_rights_, &plan_);
    return changed;
  }

 private:
  // Some at a time: where their disk does not take them, the others stay as they are.
  absl::Status ChangeAll() {
    std::vector<FileAction*> changed;
    const auto to_disk = [&changed]() -> absl::Status {
      std::vector<absl::Status> ended(changed.size());
      ForEachInParallel(changed.size(), kMostThreads, [&](size_t i) { ended[i] = ToDisk(*changed[i]); });
      for (size_t i = 0; i < changed.size(); ++i) RK_RETURN_IF_ERROR(Halfway(ended[i], *changed[i]));
      changed.clear();
      return absl::OkStatus();
    };
    for (FileAction& action : plan_) {
      if (IsCutLast(action)) continue;
      RK_RETURN_IF_ERROR(Halfway(ChangeOne(action), action));
      if (action.report.action() != Report::PUT_BACK) continue;
      changed.push_back(&action);
      if (changed.size() == kMostThreads) RK_RETURN_IF_ERROR(to_disk());
    }
    return to_disk();
  }

  // Of thousands of files each wait for the disk alone, and together hardly longer than one. The first one's
  // error, as `about` tells it.
  template <typename Work>
  absl::Status ForAll(const Work& work,
                      absl::Status (*about)(const absl::Status& status, const FileAction& action)) const {
    std::vector<absl::Status> ended(plan_.size());
    ForEachInParallel(plan_.size(), kMostThreads, [&](size_t i) { ended[i] = work(plan_[i]); });
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (!ended[i].ok()) return about(ended[i], plan_[i]);
    }
    return absl::OkStatus();
  }

  absl::Status CheckRoom() const {
    std::map<uint64_t, uint64_t> room;  // by device
    for (const FileAction& action : plan_) {
      RK_ASSIGN_OR_RETURN(const uint64_t bytes, Needs(action));
      if (bytes == 0) continue;
      struct statfs file_system;
      struct stat folder;
      if (::fstatfs(action.folder.get(), &file_system) != 0 || ::fstat(action.folder.get(), &folder) != 0)
        continue;
      if (file_system.f_blocks == 0) continue;  // without a bound
      auto left =
          room.try_emplace(folder.st_dev, file_system.f_bavail * static_cast<uint64_t>(file_system.f_bsize))
              .first;
      if (bytes > left->second) {
        return AboutFile(
            absl::ResourceExhaustedError(absl::StrCat("it needs ", FormatBytes(bytes), " of room and ",
                                                      FormatBytes(left->second), " is left")),
            action);
      }
      left->second -= bytes;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Needs(const FileAction& action) const {
    uint64_t bytes = action.keep_tail ? action.report.discarded_bytes() : 0;
    const Report::Action what = action.report.action();
    if (what != Report::PUT_BACK && what != Report::MADE_AGAIN) return bytes;
    if (action.renamed.found()) return bytes + action.recorded.size();
    RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, action.recorded));
    struct stat info = {};
    if (what == Report::PUT_BACK && ::fstat(action.file.get(), &info) != 0) info = {};
    const uint64_t allocated = static_cast<uint64_t>(info.st_blocks) * 512;
    return bytes + (content.data_bytes() > allocated ? content.data_bytes() - allocated : 0);
  }

  absl::Status MakeAgain(FileAction& action) {
    const v1::WrittenFile& file = action.recorded;
    int error = EPERM;
    bool owned = true;
    const bool with_folder = !action.missing_folders.empty();
    with_rights_([&] {
      error = MakeFolders(action);
      if (error != 0) return;
      const int folder = action.folder.get();
      action.half_made = HalfMadeName(action.name);
      (void)::unlinkat(folder, action.half_made.c_str(), 0);  // of an attempt that was interrupted
      error = MakeNew(folder, action.half_made, &action.file);
      if (error == EEXIST) {
        action.half_made = OtherHalfMadeName(action.name);
        error = MakeNew(folder, action.half_made, &action.file);
      }
      if (error != 0) return;
      owned = ::fchown(action.file.get(), file.uid(), file.gid()) == 0;
      (void)::fchmod(action.file.get(), file.mode() & (owned ? 0777 : 0700));
    });
    if (error != 0) return ErrnoStatus(error, "making it again");
    made_.push_back({&action, action.half_made});
    std::string& why = *action.report.mutable_why();
    if (with_folder) absl::StrAppend(&why, why.empty() ? "" : "; ", "its folder was made again, too");
    if (!owned) {
      absl::StrAppend(&why, why.empty() ? "" : "; ", "it could not be given to group ", file.gid());
    }
    if (action.renamed.found())
      return CopyBeginning(action.renamed.file.get(), action.file.get(), file.size());
    RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, file));
    return content.Fill(action.file.get());
  }

  // The error.
  static int MakeNew(int folder, const std::string& name, UniqueFd* file) {
    file->Reset(::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    return file->valid() ? 0 : errno;
  }

  // With the user's rights. Another file may have had them made since the plan. The error.
  int MakeFolders(FileAction& action) {
    const v1::WrittenFile& file = action.recorded;
    for (const std::string& name : action.missing_folders) {
      const bool made = ::mkdirat(action.folder.get(), name.c_str(), 0700) == 0;
      if (!made && errno != EEXIST) return errno;
      UniqueFd folder(::openat(action.folder.get(), name.c_str(),
                               (made ? O_RDONLY : O_PATH) | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      const int error = folder.valid() ? 0 : errno;
      if (made) {
        folders_.emplace_back(std::move(action.folder), name);
        // Those above it are nowhere recorded.
        const bool owned = ::fchown(folder.get(), file.has_folder() ? file.folder().uid() : file.uid(),
                                    file.has_folder() ? file.folder().gid() : file.gid()) == 0;
        const mode_t mode = file.has_folder() ? file.folder().mode() : 0700;
        (void)::fchmod(folder.get(), mode & (owned ? 03777 : 0700));
      }
      action.folder = std::move(folder);
      if (error != 0) return error;
    }
    action.missing_folders.clear();
    return 0;
  }

  void Undo() {
    for (FileAction& action : plan_) RemoveTails(with_rights_, action);
    with_rights_([&] {
      for (const Made& made : made_) (void)::unlinkat(made.action->folder.get(), made.name.c_str(), 0);
    });
    if (folders_.empty()) return;
    with_rights_([&] {
      for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) {
        (void)::unlinkat(it->first.get(), it->second.c_str(), AT_REMOVEDIR);
      }
    });
  }

  absl::Status ChangeOne(FileAction& action) {
    switch (action.report.action()) {
      case Report::TRUNCATED:
        return CutOneOff(with_rights_, action);
      case Report::PUT_BACK: {
        RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, action.recorded));
        if (action.keep_tail) RK_RETURN_IF_ERROR(CatchUpTailOf(with_rights_, action));
        return content.WriteTo(action.file.get());
      }
      case Report::MADE_AGAIN: {
        int error = EPERM;
        with_rights_([&] {
          const int folder = action.folder.get();
          error = ::renameat(folder, action.half_made.c_str(), folder, action.name.c_str()) == 0 ? 0 : errno;
        });
        return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "giving it its name");
      }
      case Report::SET_ASIDE:
        return SetAside(action);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status GiveNamesBack(FileAction& action) const {
    absl::Status status = absl::PermissionDeniedError("its user's rights can't be had");
    std::vector<std::string> kept;
    with_rights_([&] { status = RotateBack(action.folder.get(), action.rotated, absl::Now(), &kept); });
    RK_RETURN_IF_ERROR(status);
    std::string& why = *action.report.mutable_why();
    why = absl::StrCat("it was called ", action.rotated.name, " since, and has its name back");
    if (!kept.empty())
      absl::StrAppend(&why, "; what was written later is kept as ", absl::StrJoin(kept, ", "));
    return FolderToDisk(action);
  }

  absl::Status SetAside(FileAction& action) const {
    const std::string& planned = action.report.tail_copy();
    const std::string beside = planned.substr(0, planned.rfind('/') + 1);
    std::string name = planned.substr(beside.size());
    int error = EPERM;
    with_rights_([&] { error = RenameInFolder(action, &name); });
    if (error == ESTALE) return absl::AbortedError("another file has just got its name");
    if (error != 0) return ErrnoStatus(error, absl::StrCat("setting it aside as ", name));
    action.report.set_tail_copy(beside + name);
    return absl::OkStatus();
  }

  // Replaces nothing: a number is added to a name that is taken. The error.
  static int RenameInFolder(const FileAction& action, std::string* name) {
    const int folder = action.folder.get();
    struct stat info;
    if (::fstatat(folder, action.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (info.st_ino != action.recorded.inode() || info.st_dev != action.recorded.device()) return ESTALE;
    const std::string planned = *name;
    for (int number = 2; number < kNamesTried; ++number) {
      int error =
          ::renameat2(folder, action.name.c_str(), folder, name->c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
      // Some file systems can't be asked not to replace.
      if (error == EINVAL && ::fstatat(folder, name->c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
        error = EEXIST;
      if (error == EINVAL)
        error = ::renameat(folder, action.name.c_str(), folder, name->c_str()) == 0 ? 0 : errno;
      if (error != EEXIST) return error;
      *name = absl::StrCat(planned, "-", number);
    }
    return EEXIST;
  }

  // What the job writes from now on must not stand on what a crash of the machine would undo; and a time that
  // says the content is there must not be there without it. Memory has no disk.
  static absl::Status ToDisk(const FileAction& action) {
    if (::fdatasync(action.file.get()) != 0 && errno != EINVAL)
      return ErrnoStatus(errno, "writing it to its disk");
    return SetTime(action);
  }

  // Those in which names have changed, each once.
  absl::Status FoldersToDisk() const {
    std::map<std::pair<dev_t, ino_t>, const FileAction*> by_folder;
    for (const FileAction& action : plan_) {
      const Report::Action what = action.report.action();
      struct stat folder;
      if ((what == Report::MADE_AGAIN || what == Report::SET_ASIDE) &&
          ::fstat(action.folder.get(), &folder) == 0)
        by_folder.emplace(std::make_pair(folder.st_dev, folder.st_ino), &action);
    }
    std::vector<const FileAction*> folders;
    for (const auto& [number, action] : by_folder) folders.push_back(action);
    std::vector<absl::Status> ended(folders.size());
    ForEachInParallel(folders.size(), kMostThreads,
                      [&](size_t i) { ended[i] = Halfway(FolderToDisk(*folders[i]), *folders[i]); });
    for (const absl::Status& status : ended) RK_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  static absl::Status FolderToDisk(const FileAction& action) {
    // `folder` only says where it is. One that the service may not read, on a network file system say, is
    // left to the kernel.
    const UniqueFd folder = Reopen(action.folder.get(), O_RDONLY | O_DIRECTORY);
    if (!folder.valid() || ::fsync(folder.get()) == 0 || errno == EINVAL) return absl::OkStatus();
    return ErrnoStatus(errno, "writing its name to its disk");
  }

  // Last of all: by its time the next plan sees that the content is that of the image.
  static absl::Status SetTime(const FileAction& action) {
    const int64_t ns = action.recorded.modified_ns();
    if (ns == 0) return absl::OkStatus();
    const timespec times[2] = {{0, UTIME_OMIT}, {ns / 1'000'000'000, ns % 1'000'000'000}};
    if (::futimens(action.file.get(), times) != 0) return ErrnoStatus(errno, "setting its time");
    return absl::OkStatus();
  }

  const store::ImageReader& image_;
  const WithRights& with_rights_;
  std::vector<FileAction>& plan_;
  std::vector<Made> made_;
  std::vector<std::pair<UniqueFd, std::string>> folders_;  // where each was made, and its name
};

}  // namespace

void RemoveNamelessMemory(const v1::JobManifest& manifest) {
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (IsNamelessMemory(file)) ::unlink(file.path().c_str());
  }
}

absl::Status PutFilesBack(const store::ImageReader& image, const WithRights& with_rights,
                          std::vector<FileAction>* plan) {
  Applier applier(image, with_rights, plan);
  RK_RETURN_IF_ERROR(applier.Prepare());
  return applier.Change();
}

}  // namespace rekindle::restore
