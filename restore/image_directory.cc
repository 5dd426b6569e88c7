#include "restore/image_directory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/kept_logs.h"
#include "base/status.h"
#include "criu/terminal_files.h"
#include "rekindle/v1/image_layout.h"
#include "restore/clone_shared_memory.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

constexpr char kPrefix[] = "rekindle-restore-";
constexpr char kLock[] = "lock";
constexpr char kBeginningLock[] = "restores.lock";
constexpr char kNameless[] = "nameless";  // paths, a line each

bool IsTmpfs(const std::string& path) {
  struct statfs info;
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

// Where the folders of restores go. /dev/shm has those of all runtime directories, so their names tell whose
// they are.
struct Place {
  std::string parent, prefix;
};

Place PlaceOf(const std::string& runtime_directory) {
  struct stat info = {};
  (void)::stat(runtime_directory.c_str(), &info);
  return {IsTmpfs(runtime_directory) ? runtime_directory : "/dev/shm",
          absl::StrCat(kPrefix, absl::Hex(info.st_dev), "-", absl::Hex(info.st_ino), "-")};
}

std::string BeginningLock(const std::string& runtime_directory) {
  return absl::StrCat(runtime_directory, "/", kBeginningLock);
}

// Anybody may put something into /dev/shm.
bool IsOurFolder(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

void RemoveLeftovers(const std::string& runtime_directory, const Place& place) {
  // Nobody has this lock while a restore begins: a folder without a lock of its own is one of the dead then,
  // which may have died while it removed the folder.
  auto nobody_begins = LockFile(BeginningLock(runtime_directory), LOCK_EX | LOCK_NB);
  auto names = ListDirectory(place.parent);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    std::string directory = absl::StrCat(place.parent, "/", name);
    if (!absl::StartsWith(name, kPrefix) || !IsOurFolder(directory)) continue;
    auto lock = OpenFile(absl::StrCat(directory, "/", kLock), O_RDWR);
    if (!lock.ok() && (!nobody_begins.ok() || !absl::StartsWith(name, place.prefix))) continue;
    if (lock.ok() && ::flock(lock->get(), LOCK_EX | LOCK_NB) != 0) continue;  // its restore lives
    const absl::StatusOr<std::string> nameless = ReadFile(absl::StrCat(directory, "/", kNameless));
    for (const absl::string_view path : absl::StrSplit(nameless.value_or(""), '\n', absl::SkipEmpty())) {
      if (absl::StartsWith(path, v1::kNamelessPrefix)) ::unlink(std::string(path).c_str());
    }
    RemoveTree(directory).IgnoreError();
  }
}

absl::StatusOr<UniqueFd> MakeFile(const std::string& path) {
  return OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
}

absl::Status WriteFile(const std::string& path, absl::string_view content) {
  RK_ASSIGN_OR_RETURN(UniqueFd fd, MakeFile(path));
  return WriteFully(fd.get(), content.data(), content.size(), path);
}

absl::StatusOr<std::string> ReadCriuFile(const store::ImageReader& image, absl::string_view name) {
  return image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, name));
}

}  // namespace

absl::StatusOr<BlobCount> WriteCriuFiles(const store::ImageReader& image, const FileMaker& make,
                                         const v1::JobManifest* sizes_checked_by) {
  BlobCount count;
  for (const store::ObjectInfo& object : image.objects()) {
    absl::string_view name = object.name;
    if (object.paged || !absl::ConsumePrefix(&name, v1::kCriuFilePrefix)) continue;
    if (name.empty() || absl::StrContains(name, '/')) {
      return absl::DataLossError(
          absl::StrCat("the image holds a file with the impossible name '", object.name, "'"));
    }
    RK_ASSIGN_OR_RETURN(std::string content, image.ReadBlob(object.name));
    if (name == "files.img") {
      RK_ASSIGN_OR_RETURN(content, criu::RearmExpiredTimers(content));
      if (sizes_checked_by != nullptr) {
        std::set<std::string> may_grow;
        for (const v1::NeededFile& file : sizes_checked_by->files()) {
          if (file.beginning() != 0) may_grow.insert(file.path());
        }
        RK_ASSIGN_OR_RETURN(content, criu::ForgetSizes(content, may_grow));
        RK_ASSIGN_OR_RETURN(content, criu::ForgetFilesOutside(content));
      }
    }
    if (absl::StartsWith(name, "tcp-stream-")) {
      RK_ASSIGN_OR_RETURN(content, criu::TellUnsentAsSent(content));
    }
    RK_ASSIGN_OR_RETURN(const UniqueFd file, make(std::string(name)));
    RK_RETURN_IF_ERROR(WriteFully(file.get(), content.data(), content.size(), name));
    ++count.files;
    count.bytes += content.size();
  }
  return count;
}

void RemoveDeadRestores(const std::string& runtime_directory) {
  RemoveLeftovers(runtime_directory, PlaceOf(runtime_directory));
}

absl::StatusOr<ImageDirectory> ImageDirectory::Make(const store::ImageReader& image,
                                                    const v1::JobManifest& manifest,
                                                    const std::string& runtime_directory, PagesWanted pages,
                                                    std::atomic<uint64_t>* bytes_done) {
  RK_RETURN_IF_ERROR(MakeDirectories(runtime_directory));
  const Place place = PlaceOf(runtime_directory);
  RemoveLeftovers(runtime_directory, place);
  RK_ASSIGN_OR_RETURN(UniqueFd beginning, LockFile(BeginningLock(runtime_directory), LOCK_SH));
  RK_ASSIGN_OR_RETURN(TemporaryDirectory temporary, TemporaryDirectory::Make(place.parent, place.prefix));
  RK_ASSIGN_OR_RETURN(UniqueFd lock, MakeLockedFile(absl::StrCat(temporary.path(), "/", kLock), ""));
  beginning = UniqueFd();
  ImageDirectory directory(std::move(temporary), std::move(lock));
  RK_RETURN_IF_ERROR(directory.LayOut(image, manifest, pages, bytes_done));
  return directory;
}

absl::Status ImageDirectory::NoteNamelessMemory(const v1::JobManifest& manifest) const {
  std::string paths;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (IsNamelessMemory(file)) absl::StrAppend(&paths, file.path(), "\n");
  }
  return paths.empty() ? absl::OkStatus() : WriteFile(absl::StrCat(path(), "/", kNameless), paths);
}

absl::Status ImageDirectory::LayOut(const store::ImageReader& image, const v1::JobManifest& manifest,
                                    PagesWanted pages_wanted, std::atomic<uint64_t>* bytes_done) {
  const auto make = [this](const std::string& name) { return MakeFile(absl::StrCat(path(), "/", name)); };
  RK_RETURN_IF_ERROR(Annotate(WriteCriuFiles(image, make, &manifest).status(), path()));
  RK_ASSIGN_OR_RETURN(std::string pstree, ReadCriuFile(image, "pstree.img"));
  RK_ASSIGN_OR_RETURN(tree_, criu::ParsePstree(pstree));
  // A clone's parent is its sandbox's init, which lives as long as it.
  if (pages_wanted == PagesWanted::kEager) RK_RETURN_IF_ERROR(ForgetParents(image));
  RK_RETURN_IF_ERROR(ForgetForeignSessions(image));
  RK_ASSIGN_OR_RETURN(std::vector<TaskMemory> tasks, ReadTaskMemories(image, manifest));
  withheld_ = pages_wanted == PagesWanted::kLazy ? ChooseLazy(tasks) : ChooseWithheld(tasks);

  std::map<std::string, const WithheldTask*> by_object;
  for (const WithheldTask& task : withheld_) by_object[task.object] = &task;
  for (const v1::PagesObject& object : manifest.pages()) {
    auto found = by_object.find(object.object());
    criu::Pagemap whole;
    if (found == by_object.end()) {
      RK_ASSIGN_OR_RETURN(whole, ReadPagemap(image, object));
    }
    const criu::Pagemap& kept = found == by_object.end() ? whole : found->second->kept;
    const std::string pages = absl::StrCat(path(), "/pages-", object.pages_id(), ".img");
    if (pages_wanted == PagesWanted::kEager) {
      RK_RETURN_IF_ERROR(PutElsewhereIfTooLarge(kept.present_pages() * store::kPageSize, pages));
    }
    RK_ASSIGN_OR_RETURN(const UniqueFd file, MakeFile(pages));
    const absl::Status written = WritePagesFile(image, object, kept, file.get(), pages, bytes_done);
    if (written.message().find(::strerrordesc_np(ENOSPC)) != std::string::npos) {
      return Annotate(written, absl::StrCat(path(),
                                            " is in memory and has too little room (`mount -o "
                                            "remount,size=SIZE` of that file system gives it more)"));
    }
    RK_RETURN_IF_ERROR(written);
    if (found == by_object.end()) continue;
    const WithheldTask& task = *found->second;
    RK_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(path(), "/", object.pagemap_file()), criu::SerializePagemap(task.kept)));
  }
  return absl::OkStatus();
}

absl::Status ImageDirectory::PutElsewhereIfTooLarge(uint64_t bytes, const std::string& file) {
  constexpr uint64_t kLeftBytes = 16u << 20;  // for CRIU's log, and for others
  struct statfs place;
  if (::statfs(path().c_str(), &place) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path()));
  if (place.f_blocks == 0) return absl::OkStatus();  // it has no limit
  const uint64_t free = static_cast<uint64_t>(place.f_bavail) * static_cast<uint64_t>(place.f_bsize);
  if (bytes + kLeftBytes <= free) return absl::OkStatus();
  UniqueFd memory(::memfd_create("rekindle-restore", MFD_CLOEXEC));
  if (!memory.valid()) return ErrnoStatus(errno, absl::StrCat("making room for ", file));
  // CRIU is a process of our own namespace of PIDs: the job gets its numbers there.
  const std::string link = absl::StrCat("/proc/", ::getpid(), "/fd/", memory.get());
  if (::symlink(link.c_str(), file.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("making ", file));
  elsewhere_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status ImageDirectory::ForgetParents(const store::ImageReader& image) {
  for (const criu::PstreeEntry& process : tree_) {
    if (process.ppid != 0) continue;
    for (pid_t thread : process.threads) {
      const std::string name = absl::StrCat("core-", thread, ".img");
      auto core = ReadCriuFile(image, name);
      if (absl::IsNotFound(core.status())) continue;  // a zombie's threads
      RK_RETURN_IF_ERROR(core.status());
      RK_ASSIGN_OR_RETURN(std::string content, criu::ForgetDeathSignal(*core));
      RK_RETURN_IF_ERROR(WriteFile(absl::StrCat(path(), "/", name), content));
    }
  }
  return absl::OkStatus();
}

absl::Status ImageDirectory::ForgetForeignSessions(const store::ImageReader& image) {
  auto terminals = ReadCriuFile(image, "tty-info.img");
  if (absl::IsNotFound(terminals.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(terminals.status());
  RK_ASSIGN_OR_RETURN(std::string content, criu::ForgetForeignSessions(*terminals, tree_));
  return WriteFile(absl::StrCat(path(), "/tty-info.img"), content);
}

absl::Status ImageDirectory::ReplaceTerminals() {
  std::map<std::string, std::string> images;
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path()));
  for (const std::string& name : names) {
    if (name != "files.img" && name != "tty-info.img" && !absl::StartsWith(name, "fdinfo-")) continue;
    RK_ASSIGN_OR_RETURN(images[name], ReadFile(absl::StrCat(path(), "/", name)));
  }
  RK_ASSIGN_OR_RETURN(const auto changed, criu::WithoutTerminals(images));
  for (const auto& [name, content] : changed) {
    RK_RETURN_IF_ERROR(WriteFile(absl::StrCat(path(), "/", name), content));
  }
  return absl::OkStatus();
}

absl::Status ImageDirectory::ForgetBuildIds(const std::set<std::string>& known_files) {
  if (known_files.empty()) return absl::OkStatus();
  const std::string files = absl::StrCat(path(), "/files.img");
  RK_ASSIGN_OR_RETURN(std::string content, ReadFile(files));
  RK_ASSIGN_OR_RETURN(content, criu::ForgetBuildIds(content, known_files));
  return WriteFile(files, content);
}

std::string KeepRestoreLog(const std::string& runtime_directory, const std::string& folder) {
  std::string kept = PlaceForLogs(runtime_directory, "failed-restore-", folder);
  if (!MakeDirectories(kept).ok()) return folder;
  auto log = ReadFile(absl::StrCat(folder, "/restore.log"));
  if (log.ok()) WriteFile(absl::StrCat(kept, "/restore.log"), *log).IgnoreError();
  return kept;
}

}  // namespace rekindle::restore
