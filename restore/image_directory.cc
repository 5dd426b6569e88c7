#include "restore/image_directory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/human_units.h"
#include "base/kept_logs.h"
#include "base/status.h"
#include "criu/terminal_files.h"
#include "rekindle/v1/image_layout.h"
#include "restore/clone_shared_memory.h"
#include "restore/criu_files.h"
#include "restore/job_logs.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

constexpr char kSharedMemory[] = "/dev/shm";
constexpr char kPrefix[] = "rekindle-restore-";
constexpr char kLock[] = "lock";
constexpr char kBeginningLock[] = "restores.lock";
constexpr char kNameless[] = "nameless";  // paths, a line each

bool IsTmpfs(const std::string& path) {
  struct statfs info;
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

// Where the folders of restores go, the better one first. /dev/shm has those of all runtime directories, so
// their names tell whose they are.
struct Places {
  std::vector<std::string> parents;
  std::string prefix;
};

Places PlacesOf(const std::string& runtime_directory) {
  struct stat info = {};
  (void)::stat(runtime_directory.c_str(), &info);
  Places places{{kSharedMemory},
                absl::StrCat(kPrefix, absl::Hex(info.st_dev), "-", absl::Hex(info.st_ino), "-")};
  if (IsTmpfs(runtime_directory)) places.parents.insert(places.parents.begin(), runtime_directory);
  return places;
}

bool HasRoom(const std::string& folder, uint64_t bytes) {
  constexpr uint64_t kLeftBytes = 16u << 20;  // for CRIU's log, and for others
  struct statfs place;
  if (::statfs(folder.c_str(), &place) != 0 || place.f_blocks == 0) return true;  // it has no limit
  return bytes + kLeftBytes <= static_cast<uint64_t>(place.f_bavail) * static_cast<uint64_t>(place.f_bsize);
}

// The root of a file system in memory that is in nobody's mounts, and gone with the last who has it open.
absl::StatusOr<UniqueFd> MakeOwnMemory() {
  const auto failed = [] {
    return ErrnoStatus(errno, "making a file system in memory (fsopen, fsmount) for CRIU's images");
  };
  const UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return failed();
  for (const auto& [key, value] : {std::pair{"size", "0"}, {"mode", "700"}}) {
    if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0) return failed();
  }
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return failed();
  UniqueFd root(
      ::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  if (!root.valid()) return failed();
  return root;
}

std::string BeginningLock(const std::string& runtime_directory) {
  return absl::StrCat(runtime_directory, "/", kBeginningLock);
}

// Anybody may put something into /dev/shm.
bool IsOurFolder(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

void RemoveLeftovers(const std::string& runtime_directory, const Places& places) {
  // Nobody has this lock while a restore begins: a folder without a lock of its own is one of the dead then,
  // which may have died while it removed the folder.
  auto nobody_begins = LockFile(BeginningLock(runtime_directory), LOCK_EX | LOCK_NB);
  std::vector<std::string> directories;
  for (const std::string& parent : places.parents) {
    for (const std::string& name : ListDirectory(parent).value_or(std::vector<std::string>())) {
      if (absl::StartsWith(name, kPrefix)) directories.push_back(absl::StrCat(parent, "/", name));
    }
  }
  for (const std::string& directory : directories) {
    if (!IsOurFolder(directory)) continue;
    auto lock = OpenFile(absl::StrCat(directory, "/", kLock), O_RDWR);
    if (!lock.ok() &&
        (!nobody_begins.ok() || !absl::StrContains(directory, absl::StrCat("/", places.prefix))))
      continue;
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
        // Also those that it reads through another descriptor: they are cut off when CRIU has opened them.
        for (const v1::WrittenFile& file : sizes_checked_by->written_files()) may_grow.insert(file.path());
        RK_ASSIGN_OR_RETURN(content, criu::ForgetSizes(content, may_grow));
        // Whoever rotates logs makes them anew as he likes.
        RK_ASSIGN_OR_RETURN(content, criu::ForgetModes(content, LogsOf(*sizes_checked_by)));
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
  RemoveLeftovers(runtime_directory, PlacesOf(runtime_directory));
}

// What CRIU gets of the image's pages.
struct ImageDirectory::Pages {
  std::vector<WithheldTask> withheld;
  std::map<std::string, size_t> numbers;  // of these, by their objects
  std::vector<criu::Pagemap> kept;        // of each object of the manifest
  uint64_t bytes = 0;

  static absl::StatusOr<Pages> Choose(const store::ImageReader& image, const v1::JobManifest& manifest,
                                      PagesWanted wanted) {
    Pages pages;
    RK_ASSIGN_OR_RETURN(const std::vector<TaskMemory> tasks, ReadTaskMemories(image, manifest));
    pages.withheld = wanted == PagesWanted::kLazy ? ChooseLazy(tasks) : ChooseWithheld(tasks);
    for (size_t i = 0; i < pages.withheld.size(); ++i) pages.numbers[pages.withheld[i].object] = i;
    for (const v1::PagesObject& object : manifest.pages()) {
      const WithheldTask* task = pages.Of(object);
      criu::Pagemap kept;
      if (task != nullptr) {
        kept = task->kept;
      } else {
        RK_ASSIGN_OR_RETURN(kept, ReadPagemap(image, object));
      }
      pages.bytes += kept.present_pages() * store::kPageSize;
      pages.kept.push_back(std::move(kept));
    }
    return pages;
  }

  const WithheldTask* Of(const v1::PagesObject& object) const {
    const auto number = numbers.find(object.object());
    return number == numbers.end() ? nullptr : &withheld[number->second];
  }
};

absl::StatusOr<ImageDirectory> ImageDirectory::Make(const store::ImageReader& image,
                                                    const v1::JobManifest& manifest,
                                                    const std::string& runtime_directory, PagesWanted pages,
                                                    std::atomic<uint64_t>* bytes_done) {
  RK_RETURN_IF_ERROR(MakeDirectories(runtime_directory));
  const Places places = PlacesOf(runtime_directory);
  RemoveLeftovers(runtime_directory, places);
  RK_ASSIGN_OR_RETURN(const Pages chosen, Pages::Choose(image, manifest, pages));
  uint64_t bytes = chosen.bytes;
  for (const store::ObjectInfo& object : image.objects()) {
    if (!object.paged && absl::StartsWith(object.name, v1::kCriuFilePrefix)) bytes += object.bytes;
  }
  std::string parent = places.parents.front();
  const bool fits = HasRoom(parent, bytes);
  if (!fits && pages == PagesWanted::kLazy) {
    parent = kSharedMemory;
    if (!HasRoom(parent, bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("CRIU's images take ", FormatBytes(bytes), " of memory, and ",
                       absl::StrJoin(places.parents, " and "),
                       " have too little room (`mount -o remount,size=SIZE` gives a file system more)"));
    }
  }
  RK_ASSIGN_OR_RETURN(UniqueFd beginning, LockFile(BeginningLock(runtime_directory), LOCK_SH));
  RK_ASSIGN_OR_RETURN(TemporaryDirectory temporary, TemporaryDirectory::Make(parent, places.prefix));
  RK_ASSIGN_OR_RETURN(UniqueFd lock, MakeLockedFile(absl::StrCat(temporary.path(), "/", kLock), ""));
  beginning = UniqueFd();
  ImageDirectory directory(std::move(temporary), std::move(lock));
  if (!fits && pages == PagesWanted::kEager) {
    RK_ASSIGN_OR_RETURN(directory.own_, MakeOwnMemory());
    directory.path_ = absl::StrCat("/proc/", ::getpid(), "/fd/", directory.own_.get());
  }
  RK_RETURN_IF_ERROR(directory.LayOut(image, manifest, pages, chosen, bytes_done));
  return directory;
}

absl::Status ImageDirectory::NoteNamelessMemory(const v1::JobManifest& manifest) const {
  std::string paths;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (IsNamelessMemory(file)) absl::StrAppend(&paths, file.path(), "\n");
  }
  return paths.empty() ? absl::OkStatus() : WriteFile(absl::StrCat(name(), "/", kNameless), paths);
}

absl::Status ImageDirectory::LayOut(const store::ImageReader& image, const v1::JobManifest& manifest,
                                    PagesWanted pages_wanted, const Pages& pages,
                                    std::atomic<uint64_t>* bytes_done) {
  const auto make = [this](const std::string& name) { return MakeFile(absl::StrCat(path(), "/", name)); };
  RK_RETURN_IF_ERROR(Annotate(WriteCriuFiles(image, make, &manifest).status(), path()));
  RK_ASSIGN_OR_RETURN(std::string pstree, ReadCriuFile(image, "pstree.img"));
  RK_ASSIGN_OR_RETURN(tree_, criu::ParsePstree(pstree));
  // A clone's parent is its sandbox's init, which lives as long as it.
  if (pages_wanted == PagesWanted::kEager) RK_RETURN_IF_ERROR(ForgetParents(image));
  RK_RETURN_IF_ERROR(ForgetForeignSessions(image));
  withheld_ = pages.withheld;
  for (int i = 0; i < manifest.pages_size(); ++i) {
    const v1::PagesObject& object = manifest.pages(i);
    const criu::Pagemap& kept = pages.kept[static_cast<size_t>(i)];
    const std::string path_of_pages = absl::StrCat(path(), "/pages-", object.pages_id(), ".img");
    RK_ASSIGN_OR_RETURN(const UniqueFd file, MakeFile(path_of_pages));
    const absl::Status written = WritePagesFile(image, object, kept, file.get(), path_of_pages, bytes_done);
    if (ErrnoOf(written) == ENOSPC) {
      return Annotate(written, absl::StrCat(path(),
                                            " is in memory and has too little room (`mount -o "
                                            "remount,size=SIZE` of that file system gives it more)"));
    }
    RK_RETURN_IF_ERROR(written);
    if (pages.Of(object) == nullptr) continue;
    RK_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(path(), "/", object.pagemap_file()), criu::SerializePagemap(kept)));
  }
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

std::string KeepRestoreLog(const std::string& runtime_directory, const std::string& folder,
                           const std::string& name) {
  std::string kept = PlaceForLogs(runtime_directory, "failed-restore-", name);
  if (!MakeDirectories(kept).ok()) return folder;
  auto log = ReadFile(absl::StrCat(folder, "/restore.log"));
  if (log.ok()) WriteFile(absl::StrCat(kept, "/restore.log"), *log).IgnoreError();
  return kept;
}

}  // namespace rekindle::restore
