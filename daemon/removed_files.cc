#include "daemon/removed_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/file_patterns.h"
#include "base/follow_in_root.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/path_below.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "daemon/supervised_record.h"

namespace rekindle::daemon {
namespace {

// Together, below one folder.
constexpr size_t kMostKept = 1000;
// That are looked at for it.
constexpr size_t kMostNamesLookedAt = 20'000;
constexpr int kDeepestKept = 8;
// Several of a file that was renamed; what is beyond was made by somebody else.
constexpr size_t kMostSecondNames = 4 * kMostKept;
constexpr absl::string_view kOurNames = ".rekindle-", kNamesOfNfs = ".nfs";
// The kernel tells the times of files by its ticks: they may be as much too early. No job runs so shortly
// before an image of it is whole.
constexpr int64_t kTickNanos = 10'000'000;
// Behind each name: programs find their checkpoints by how names end.
constexpr absl::string_view kKeptSuffix = ".kept";

struct CloseDir {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using OpenDir = std::unique_ptr<DIR, CloseDir>;

// Of a descriptor of a folder, which stays the caller's. Null: it can't be read.
OpenDir ReadDir(int folder) {
  UniqueFd copy(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy.valid()) return nullptr;
  OpenDir dir(::fdopendir(copy.get()));
  if (dir != nullptr) (void)copy.Release();
  return dir;
}

using FileNumber = std::pair<dev_t, ino_t>;
// When a file was first seen to have no name but ours.
using SeenGone = std::map<FileNumber, int64_t>;

uint64_t Allocated(const struct stat& info) { return static_cast<uint64_t>(info.st_blocks) * 512; }

// A folder with second names.
struct KeptFolder {
  std::string name;
  UniqueFd above, folder;  // not valid: it is not there

  // Nobody else's, in a folder where others may make theirs.
  bool Open(uid_t user) {
    folder.Reset(::openat(above.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (folder.valid() && ::fstat(folder.get(), &info) == 0 && info.st_uid == user) return true;
    folder.Reset();
    return false;
  }
  bool Make(uid_t user) {
    if (folder.valid()) return true;
    if (!above.valid()) return false;
    (void)::mkdirat(above.get(), name.c_str(), 0700);
    return Open(user);
  }
  void RemoveIfEmpty() const { (void)::unlinkat(above.get(), name.c_str(), AT_REMOVEDIR); }
};

// A second name: "NANOSECONDS@PATH.kept", with the path below the folder, and since when at least the file
// has had it: when it got its second name nothing had been changed of it for so long.
// "NANOSECONDS-GONE@PATH.kept" once it was noted that it has no other name since then, for when the folder is
// copied, with which the file's own times are those of the copy.
struct KeptName {
  std::string name;
  int64_t since_unix_ns = 0, gone_unix_ns = INT64_MAX;
  std::string path;
  const KeptFolder* place = nullptr;

  void Remove() const { (void)::unlinkat(place->folder.get(), name.c_str(), 0); }
};

std::string SecondName(int64_t since_unix_ns, absl::string_view path, int64_t gone_unix_ns = INT64_MAX) {
  return absl::StrCat(since_unix_ns, gone_unix_ns == INT64_MAX ? "" : absl::StrCat("-", gone_unix_ns), "@",
                      absl::StrReplaceAll(path, {{"%", "%25"}, {"/", "%2F"}}), kKeptSuffix);
}

std::optional<KeptName> ParseName(const std::string& name) {
  KeptName kept;
  kept.name = name;
  absl::string_view rest = name;
  const size_t at = rest.find('@');
  if (at == absl::string_view::npos || !absl::ConsumeSuffix(&rest, kKeptSuffix)) return std::nullopt;
  const std::pair<absl::string_view, absl::string_view> times =
      absl::StrSplit(rest.substr(0, at), absl::MaxSplits('-', 1));
  if (!absl::SimpleAtoi(times.first, &kept.since_unix_ns) ||
      (!times.second.empty() && !absl::SimpleAtoi(times.second, &kept.gone_unix_ns)))
    return std::nullopt;
  kept.path = absl::StrReplaceAll(rest.substr(at + 1), {{"%2F", "/"}, {"%25", "%"}});
  // Nobody but the user can have made it otherwise, and it is used with the user's rights.
  if (kept.path.empty() || kept.path[0] == '/') return std::nullopt;
  return kept;
}

struct KeptFile {
  struct stat info = {};
  std::vector<KeptName> names;
  // It has no name but those that we gave it.
  bool removed() const { return info.st_nlink <= names.size(); }
  int64_t seen_gone_unix_ns = INT64_MAX;
  // When it lost the last one, at the latest: the kernel notes the change of the count, but other changes in
  // its place, as when somebody who has the file open writes to it still.
  int64_t removed_unix_ns() const {
    int64_t removed = std::min(Nanos(info.st_ctim) + kTickNanos, seen_gone_unix_ns);
    for (const KeptName& name : names) removed = std::min(removed, name.gone_unix_ns);
    return removed;
  }
};

// One folder of the job's, with what is kept there.
class KeptBelow {
 public:
  // `gone`: of all of the job's folders; what is found here is added.
  KeptBelow(const RemovedFiles::Options& options, std::string folder, SeenGone* gone)
      : options_(options), folder_(std::move(folder)), gone_(*gone) {
    inside_.name = KeptFolderOf(options.job);
    beside_.name = KeptFolderBeside(options.job, NameOfFolder());
  }

  void Keep(int64_t begins_with_unix_ns, std::vector<std::string>* warnings) {
    if (!Open()) return;
    Read();
    struct Found {
      std::string path;
      struct stat info;
    };
    std::vector<Found> found;
    Walk([&](const std::string& path, const struct stat& info) { found.push_back({path, info}); });
    // Those that it will remove first come first.
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
      return Nanos(a.info.st_mtim) < Nanos(b.info.st_mtim);
    });
    const std::optional<uint64_t> room = MayTakeUp();
    if (!room) return;
    uint64_t may_take_up = *room, left_out_bytes = 0;
    size_t left_out = 0;
    DropBeyond(&may_take_up, warnings);
    for (const Found& file : found) {
      const FileNumber number(file.info.st_dev, file.info.st_ino);
      auto known = files_.find(number);
      if (known != files_.end() && std::any_of(known->second.names.begin(), known->second.names.end(),
                                               [&](const KeptName& name) { return name.path == file.path; }))
        continue;
      int64_t since = Nanos(file.info.st_ctim);
      if (since > begins_with_unix_ns && WasThere(file.path, file.info, begins_with_unix_ns))
        since = begins_with_unix_ns;
      const std::string name = SecondName(since, file.path);
      if (name.size() > NAME_MAX) continue;
      if (known == files_.end()) {
        if (files_.size() >= kMostKept || Allocated(file.info) > may_take_up) {
          ++left_out;
          left_out_bytes += Allocated(file.info);
          continue;
        }
        may_take_up -= Allocated(file.info);
      }
      const KeptFolder* place = PlaceForMore();
      if (place == nullptr) return;
      int error = LinkAs(file.path, number, *place, name);
      // Such as what has a disk quota of its own (XFS projects).
      if (error == EXDEV && place == &beside_) {
        beside_.RemoveIfEmpty();
        may_be_beside_ = false;
        place = PlaceForMore();
        if (place == nullptr) return;
        error = LinkAs(file.path, number, *place, name);
      }
      if (error == 0) {
        KeptFile& kept = files_[number];
        if (kept.names.empty()) {
          kept.info = file.info;
          gone_.erase(number);  // of an earlier file
        }
        ++kept.info.st_nlink;
        kept.names.push_back({name, since, INT64_MAX, file.path, place});
      } else if (error != ENOENT && error != EEXIST) {
        // Such as file systems that know no second names.
        Log(LogLevel::kDebug, absl::StrCat("what job '", options_.job, "' removes below ", folder_,
                                           " is not kept: ", ErrnoStatus(error, "linkat").message()));
        break;
      }
    }
    if (left_out == 0) return;
    warnings->push_back(absl::StrCat(
        left_out, left_out == 1 ? " file" : " files", " of ", FormatBytes(left_out_bytes), " below ",
        ToUtf8(folder_), left_out == 1 ? " is" : " are",
        " beyond what is kept of files that the job removes (an eighth of what is free on the disk, ",
        kMostKept, " files): where it goes back to an image it misses what it has removed since"));
  }

  void PutBack(int64_t image_unix_ns, std::vector<v1::FileRollback>* done) {
    if (!Open()) return;
    Read();
    std::vector<std::pair<KeptName*, KeptFile*>> gone;
    for (auto& [number, file] : files_) {
      if (!file.removed() || file.removed_unix_ns() <= image_unix_ns) continue;
      // As it was called then.
      KeptName* then = nullptr;
      for (KeptName& name : file.names) {
        if (name.since_unix_ns <= image_unix_ns &&
            (then == nullptr || name.since_unix_ns > then->since_unix_ns))
          then = &name;
      }
      if (then != nullptr && !IsIgnored(then->path)) gone.emplace_back(then, &file);
    }
    std::sort(gone.begin(), gone.end(), [](const auto& a, const auto& b) {
      return std::make_pair(a.first->path, b.first->since_unix_ns) <
             std::make_pair(b.first->path, a.first->since_unix_ns);
    });
    for (const auto& [name, file] : gone) {
      const int error = GiveBack(*name);
      if (error == EEXIST) continue;  // by another one, which the job has made since
      if (error == 0) {
        gone_.erase({file->info.st_dev, file->info.st_ino});
        for (KeptName& each : file->names) Note(INT64_MAX, each);
      }
      v1::FileRollback& report = done->emplace_back();
      report.set_path(ToUtf8(PathOf(name->path)));
      report.set_size(static_cast<uint64_t>(file->info.st_size));
      report.set_action(error == 0 ? v1::FileRollback::MADE_AGAIN : v1::FileRollback::LEFT);
      report.set_why(error == 0 ? "the job had removed it after the image"
                                : absl::StrCat("the job has removed it after the image, and it can't be "
                                               "given back its name: ",
                                               ErrnoStatus(error, "linkat").message()));
    }
  }

  void Forget(int64_t oldest_image_unix_ns, bool ended) {
    // Of one that the job has removed as a whole there is no need either.
    if (!Open() && !beside_.above.valid()) return;
    Read();
    for (auto& [number, file] : files_) {
      if (ended && !file.removed()) {
        Drop(file);
        continue;
      }
      if (file.removed()) {
        const int64_t removed = file.removed_unix_ns();
        if (removed <= oldest_image_unix_ns || IsReplaced(file)) {
          Drop(file);
        } else {
          for (KeptName& name : file.names) Note(removed, name);
        }
        continue;
      }
      // Of the names that it had before, the images may need the last.
      int64_t needed = INT64_MIN;
      for (const KeptName& name : file.names) {
        if (name.since_unix_ns <= oldest_image_unix_ns) needed = std::max(needed, name.since_unix_ns);
      }
      for (const KeptName& name : file.names) {
        if (name.since_unix_ns < needed) name.Remove();
      }
    }
    RemoveEmptyFolders();
  }

  void ForgetAll() {
    if (!Open() && !beside_.above.valid()) return;
    Read();
    for (const auto& [number, file] : files_) Drop(file);
    RemoveEmptyFolders();
  }

 private:
  std::string PathOf(absl::string_view below) const { return absl::StrCat(folder_, "/", below); }

  bool IsIgnored(absl::string_view below) const {
    const std::string path = PathOf(below);
    return std::any_of(options_.ignored.begin(), options_.ignored.end(),
                       [&](const std::string& folder) { return IsBelow(path, folder); });
  }

  absl::string_view NameOfFolder() const { return absl::string_view(folder_).substr(folder_.rfind('/') + 1); }

  bool Open() {
    const size_t slash = folder_.rfind('/');
    beside_.above = OpenPlain(AT_FDCWD, slash == 0 ? "/" : folder_.substr(0, slash), O_PATH | O_DIRECTORY);
    top_ = OpenPlain(AT_FDCWD, folder_, O_RDONLY | O_DIRECTORY);
    struct stat info;
    if (!top_.valid() || ::fstat(top_.get(), &info) != 0) return false;
    device_ = info.st_dev;
    inside_.above.Reset(::openat(top_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    // A link leads elsewhere than to what lies beside it.
    struct stat as_named;
    may_be_beside_ = ::fstatat(beside_.above.get(), std::string(NameOfFolder()).c_str(), &as_named,
                               AT_SYMLINK_NOFOLLOW) == 0 &&
                     as_named.st_ino == info.st_ino && as_named.st_dev == info.st_dev && IsOnMountOfTop();
    return inside_.above.valid();
  }
  // Between two mounts of one file system no second names are given either.
  bool IsOnMountOfTop() const {
    struct statx top, above;
    constexpr unsigned kWanted = STATX_BASIC_STATS | STATX_MNT_ID;
    if (::statx(top_.get(), "", AT_EMPTY_PATH, kWanted, &top) != 0 ||
        ::statx(beside_.above.get(), "", AT_EMPTY_PATH, kWanted, &above) != 0)
      return false;
    return top.stx_dev_major == above.stx_dev_major && top.stx_dev_minor == above.stx_dev_minor &&
           ((top.stx_mask & above.stx_mask & STATX_MNT_ID) == 0 || top.stx_mnt_id == above.stx_mnt_id);
  }
  // Null: there is none.
  const KeptFolder* PlaceForMore() {
    may_be_beside_ = may_be_beside_ && beside_.name.size() <= NAME_MAX && beside_.Make(options_.user.uid);
    if (may_be_beside_) return &beside_;
    return inside_.Make(options_.user.uid) ? &inside_ : nullptr;
  }
  void RemoveEmptyFolders() const {
    for (const KeptFolder* place : {&beside_, &inside_}) {
      if (place->folder.valid()) place->RemoveIfEmpty();
    }
  }

  void Read() {
    files_.clear();
    size_t names = 0;
    for (KeptFolder* place : {&beside_, &inside_}) {
      if (!place->above.valid() || !place->Open(options_.user.uid)) continue;
      const OpenDir dir = ReadDir(place->folder.get());
      if (dir == nullptr) continue;
      while (const dirent* entry = ::readdir(dir.get())) {
        if (++names > kMostSecondNames) break;
        std::optional<KeptName> name = ParseName(entry->d_name);
        struct stat info;
        if (!name || ::fstatat(place->folder.get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode))
          continue;
        name->place = place;
        KeptFile& file = files_[{info.st_dev, info.st_ino}];
        file.info = info;
        file.names.push_back(*std::move(name));
      }
    }
    const int64_t now = UnixNanos();
    for (auto& [number, file] : files_) {
      // It may have been given back, or its number be another's.
      if (!file.removed()) {
        gone_.erase(number);
        for (KeptName& name : file.names) Note(INT64_MAX, name);
      } else {
        file.seen_gone_unix_ns = gone_.try_emplace(number, now).first->second;
      }
    }
  }

  // The folder in which `path` lies, where no link leads there; moves `path` on to the name in it. The error
  // is in errno.
  UniqueFd FolderOf(absl::string_view* path) const {
    UniqueFd folder(::openat(top_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (size_t slash; folder.valid() && (slash = path->find('/')) != absl::string_view::npos;
         path->remove_prefix(slash + 1)) {
      const std::string name(path->substr(0, slash));
      folder.Reset(::openat(folder.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    }
    return folder;
  }

  // Whoever may change the folders may have put another file, of somebody else, in its place meanwhile. The
  // error.
  int LinkAs(absl::string_view path, const FileNumber& number, const KeptFolder& place,
             const std::string& kept_name) const {
    const UniqueFd folder = FolderOf(&path);
    if (!folder.valid()) return errno == ENOTDIR || errno == ELOOP ? ENOENT : errno;
    const std::string name(path);
    const int kept = place.folder.get();
    if (::linkat(folder.get(), name.c_str(), kept, kept_name.c_str(), 0) != 0) return errno;
    struct stat info;
    if (::fstatat(kept, kept_name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        FileNumber(info.st_dev, info.st_ino) == number)
      return 0;
    (void)::unlinkat(kept, kept_name.c_str(), 0);
    return ENOENT;
  }

  template <typename Visit>
  void Walk(const Visit& visit) const {
    struct Place {
      std::string path;  // below the folder; empty: it itself
      int depth;
    };
    size_t names = 0;
    // Folders with much in them (data) do not keep it from others.
    std::deque<Place> places = {{"", 0}};
    while (!places.empty() && names < kMostNamesLookedAt) {
      const Place place = std::move(places.front());
      places.pop_front();
      absl::string_view last = place.path;
      const UniqueFd above = FolderOf(&last);
      const UniqueFd folder(::openat(above.get(), last.empty() ? "." : std::string(last).c_str(),
                                     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      struct stat info;
      if (!folder.valid() || ::fstat(folder.get(), &info) != 0 || info.st_dev != device_) continue;
      // Where no name has come or gone since, no file is the job's.
      const bool changed = Nanos(info.st_mtim) >= options_.since_unix_ns;
      const OpenDir dir = ReadDir(folder.get());
      if (dir == nullptr) continue;
      while (const dirent* entry = ::readdir(dir.get())) {
        const std::string name = entry->d_name;
        if (name == "." || name == "..") continue;
        if (++names >= kMostNamesLookedAt) break;
        const bool may_be_file = entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN;
        const bool may_be_folder = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
        if (!(may_be_file && changed) && !may_be_folder) continue;
        const std::string path = place.path.empty() ? name : absl::StrCat(place.path, "/", name);
        struct stat of;
        if (entry->d_type == DT_DIR) {
          of.st_mode = S_IFDIR;
        } else if (::fstatat(folder.get(), name.c_str(), &of, AT_SYMLINK_NOFOLLOW) != 0) {
          continue;
        }
        if (S_ISDIR(of.st_mode)) {
          if (name[0] != '.' && place.depth < kDeepestKept && !IsIgnored(path))
            places.push_back({path, place.depth + 1});
        } else if (changed && IsTheJobs(folder.get(), name, path, of)) {
          visit(path, of);
        }
      }
    }
  }

  bool IsTheJobs(int folder, const std::string& name, const std::string& path,
                 const struct stat& info) const {
    if (!S_ISREG(info.st_mode) || info.st_uid != options_.user.uid || info.st_dev != device_) return false;
    // Of a database a part is of no use (docs/files.md).
    if (absl::StrContains(name, kOurNames) || absl::StartsWith(name, kNamesOfNfs) ||
        !DatabaseBeside(name).empty() || IsIgnored(path))
      return false;
    return Nanos(info.st_mtim) >= options_.since_unix_ns ||
           BornUnixNanos(folder, name, AT_SYMLINK_NOFOLLOW) >= options_.since_unix_ns;
  }

  bool WasThere(const std::string& path, const struct stat& info, int64_t unix_ns) const {
    const int64_t born = BornUnixNanos(top_.get(), path, AT_SYMLINK_NOFOLLOW);  // 0: not known
    return Nanos(info.st_mtim) <= unix_ns || (born != 0 && born <= unix_ns);
  }

  // Of the disk, with what is removed already. Nothing: the file system does not say just now.
  std::optional<uint64_t> MayTakeUp() const {
    struct statvfs disk;
    if (::fstatvfs(top_.get(), &disk) != 0) return std::nullopt;
    uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    for (const auto& [number, file] : files_) {
      if (file.removed()) free += Allocated(file.info);
    }
    return free / options_.share_of_free;
  }
  // The disk may have filled up since.
  void DropBeyond(uint64_t* may_take_up, std::vector<std::string>* warnings) {
    size_t dropped = 0;
    uint64_t dropped_bytes = 0;
    std::vector<std::pair<int64_t, FileNumber>> oldest;
    for (const auto& [number, file] : files_) oldest.emplace_back(Nanos(file.info.st_mtim), number);
    std::sort(oldest.begin(), oldest.end());
    for (const auto& [modified_ns, number] : oldest) {
      const KeptFile& file = files_[number];
      if (Allocated(file.info) <= *may_take_up) {
        *may_take_up -= Allocated(file.info);
      } else {
        dropped += file.removed() ? 1 : 0;
        dropped_bytes += file.removed() ? Allocated(file.info) : 0;
        Drop(file);
        files_.erase(number);
      }
    }
    if (dropped == 0) return;
    warnings->push_back(absl::StrCat(dropped, dropped == 1 ? " file" : " files", " of ",
                                     FormatBytes(dropped_bytes), " that the job has removed below ",
                                     ToUtf8(folder_), dropped == 1 ? " is" : " are",
                                     " kept no longer, since the disk has filled up: where it goes back to "
                                     "an image from before, it misses ",
                                     dropped == 1 ? "it" : "them"));
  }

  // Since when it has no name but ours; INT64_MAX: it has another one.
  static void Note(int64_t gone_unix_ns, KeptName& kept) {
    if (kept.gone_unix_ns == gone_unix_ns) return;
    std::string name = SecondName(kept.since_unix_ns, kept.path, gone_unix_ns);
    const int place = kept.place->folder.get();
    if (name.size() > NAME_MAX || ::renameat(place, kept.name.c_str(), place, name.c_str()) != 0) return;
    kept.name = std::move(name);
    kept.gone_unix_ns = gone_unix_ns;
  }

  void Drop(const KeptFile& file) const {
    gone_.erase({file.info.st_dev, file.info.st_ino});
    for (const KeptName& name : file.names) name.Remove();
  }

  // Another file has the name that it had last: a newer version, which does as well.
  bool IsReplaced(const KeptFile& file) const {
    const auto last = std::max_element(
        file.names.begin(), file.names.end(),
        [](const KeptName& a, const KeptName& b) { return a.since_unix_ns < b.since_unix_ns; });
    absl::string_view name = last->path;
    const UniqueFd folder = FolderOf(&name);
    struct stat info;
    return ::fstatat(folder.get(), std::string(name).c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  }

  // The error.
  int GiveBack(const KeptName& kept) const {
    UniqueFd folder(::openat(top_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    absl::string_view rest = kept.path;
    for (size_t slash; (slash = rest.find('/')) != absl::string_view::npos; rest.remove_prefix(slash + 1)) {
      const std::string name(rest.substr(0, slash));
      struct stat above;
      if (::fstat(folder.get(), &above) != 0) return errno;
      // As the one that it lies in.
      const bool made = ::mkdirat(folder.get(), name.c_str(), 0700) == 0;
      if (!made && errno != EEXIST) return errno;
      UniqueFd next(::openat(folder.get(), name.c_str(),
                             (made ? O_RDONLY : O_PATH) | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!next.valid()) return errno;
      if (made) (void)::fchmod(next.get(), above.st_mode & 0777);
      folder = std::move(next);
    }
    const std::string name(rest);
    return ::linkat(kept.place->folder.get(), kept.name.c_str(), folder.get(), name.c_str(), 0) == 0 ? 0
                                                                                                     : errno;
  }

  const RemovedFiles::Options& options_;
  const std::string folder_;
  SeenGone& gone_;
  UniqueFd top_;
  KeptFolder beside_, inside_;
  bool may_be_beside_ = false;
  dev_t device_ = 0;
  std::map<FileNumber, KeptFile> files_;
};

}  // namespace

std::string KeptFolderOf(const std::string& job) { return absl::StrCat(".rekindle-removed.", job); }

std::string KeptFolderBeside(const std::string& job, absl::string_view folder_name) {
  return absl::StrCat(KeptFolderOf(job), "@", folder_name);
}

RemovedFiles::Options RemovedFilesOf(const v1::SupervisedJobRecord& record) {
  RemovedFiles::Options options;
  options.job = record.name();
  GetOwner(record, &options.user);
  options.since_unix_ns =
      record.first_submitted_unix_ns() != 0 ? record.first_submitted_unix_ns() : record.submitted_unix_ns();
  const v1::Rollback& rollback = record.policy().rollback();
  options.ignored.assign(rollback.ignore_paths().begin(), rollback.ignore_paths().end());
  if (rollback.mode() == v1::Rollback::NONE) return options;
  for (std::string folder : record.policy().keep_removed()) {
    while (absl::EndsWith(folder, "/")) folder.pop_back();
    if (!folder.empty()) options.folders.push_back(folder);
  }
  std::sort(options.folders.begin(), options.folders.end());
  // Those above come first.
  std::vector<std::string> apart;
  for (std::string& folder : options.folders) {
    if (std::none_of(apart.begin(), apart.end(),
                     [&](const std::string& above) { return IsBelow(folder, above); }))
      apart.push_back(std::move(folder));
  }
  options.folders = std::move(apart);
  return options;
}

struct RemovedFiles::Work {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;

  bool Await(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    return AwaitUntil(mutex, absl::Condition(&done), Deadline(patience));
  }
};

// For who works, one after the other.
struct RemovedFiles::Gone {
  SeenGone seen;
  std::vector<std::string> untold;  // warnings of what nobody waited for
};

RemovedFiles::RemovedFiles(Options options)
    : options_(std::make_shared<const Options>(std::move(options))), gone_(std::make_shared<Gone>()) {}

std::shared_ptr<RemovedFiles::Work> RemovedFiles::Begin(std::function<void()> work) {
  auto mine = std::make_shared<Work>();
  const absl::Status begun = CatchNoMoreThreads([&] {
    std::thread([mine, before = last_, options = options_, work = std::move(work)] {
      if (before != nullptr) (void)before->Await(absl::InfiniteDuration());
      const absl::Status status = WithFileRightsOf(options->user, [&] {
        work();
        return absl::OkStatus();
      });
      if (!status.ok()) Log(LogLevel::kDebug, status.message());
      absl::MutexLock lock(&mine->mutex);
      mine->done = true;
    }).detach();
    return absl::OkStatus();
  });
  if (!begun.ok()) return nullptr;
  last_ = mine;
  return mine;
}

bool RemovedFiles::InTime(std::function<void()> work) {
  if (options_->folders.empty()) return false;
  std::shared_ptr<Work> mine;
  for (const Deadline deadline(options_->patience);;) {
    std::shared_ptr<Work> before;
    {
      absl::MutexLock lock(&mutex_);
      if (last_ == nullptr || last_->Await(absl::ZeroDuration())) {
        mine = Begin(std::move(work));
        break;
      }
      before = last_;
    }
    if (!before->Await(deadline.left())) return false;
  }
  return mine != nullptr && mine->Await(options_->patience);
}

void RemovedFiles::KeepMeanwhile() {
  if (options_->folders.empty()) return;
  absl::MutexLock lock(&mutex_);
  // Where a file system does not answer no more threads wait for it.
  meanwhile_hangs_ = meanwhile_ != nullptr && !meanwhile_->Await(absl::ZeroDuration());
  if (meanwhile_hangs_) return;
  meanwhile_ = Begin([options = options_, gone = gone_] {
    for (const std::string& folder : options->folders)
      KeptBelow(*options, folder, &gone->seen).Keep(INT64_MIN, &gone->untold);
  });
}

void RemovedFiles::AwaitKept(absl::Duration patience) {
  std::shared_ptr<Work> work;
  {
    absl::MutexLock lock(&mutex_);
    if (meanwhile_hangs_) return;
    work = meanwhile_;
  }
  if (work != nullptr) (void)work->Await(patience);
}

std::vector<std::string> RemovedFiles::Keep(int64_t begins_with_unix_ns) {
  const auto warnings = std::make_shared<std::vector<std::string>>();
  if (!InTime([options = options_, gone = gone_, warnings, begins_with_unix_ns] {
        warnings->swap(gone->untold);
        for (const std::string& folder : options->folders)
          KeptBelow(*options, folder, &gone->seen).Keep(begins_with_unix_ns, warnings.get());
      }))
    return {};
  return std::move(*warnings);
}

std::vector<v1::FileRollback> RemovedFiles::PutBack(int64_t image_unix_ns) {
  const auto done = std::make_shared<std::vector<v1::FileRollback>>();
  if (!InTime([options = options_, gone = gone_, done, image_unix_ns] {
        for (const std::string& folder : options->folders)
          KeptBelow(*options, folder, &gone->seen).PutBack(image_unix_ns, done.get());
      })) {
    if (!options_->folders.empty()) {
      Log(LogLevel::kWarning,
          absl::StrCat("what job '", options_->job, "' has removed may not be there again: below ",
                       ToUtf8(options_->folders.front()), " a file system does not answer in time"));
    }
    return {};
  }
  return std::move(*done);
}

void RemovedFiles::Forget(int64_t oldest_image_unix_ns, bool ended) {
  InTime([options = options_, gone = gone_, oldest_image_unix_ns, ended] {
    for (const std::string& folder : options->folders)
      KeptBelow(*options, folder, &gone->seen).Forget(oldest_image_unix_ns, ended);
  });
}

void RemovedFiles::ForgetAll() {
  InTime([options = options_, gone = gone_] {
    for (const std::string& folder : options->folders) KeptBelow(*options, folder, &gone->seen).ForgetAll();
  });
}

}  // namespace rekindle::daemon
