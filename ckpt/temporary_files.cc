#include "ckpt/temporary_files.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/proc_text.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

constexpr size_t kDeepest = 64;
// Beyond the limit things are counted, to tell what takes most; this many.
constexpr size_t kMostCounted = 100'000;

class Walk {
 public:
  Walk(const std::set<std::string>& without, const TemporaryLimits& limits, bool take)
      : without_(without), limits_(limits), take_(take) {}

  absl::Status Go(const std::string& root) {
    RK_ASSIGN_OR_RETURN(const UniqueFd top, OpenFile(root, O_PATH | O_DIRECTORY));
    for (const char* name : {"/tmp", "/dev/shm"}) {
      // Where it is a link, the job's own is mounted at its end.
      UniqueFd place = FollowInRoot(top.get(), name, 0);
      if (!place.valid() && errno == ENOENT) continue;
      if (!place.valid()) return ErrnoStatus(errno, absl::StrCat("opening the ", name, " of a job"));
      struct stat folder, machines;
      struct statfs kind;
      if (::fstat(place.get(), &folder) != 0 || ::fstatfs(place.get(), &kind) != 0)
        return ErrnoStatus(errno, absl::StrCat("looking at the ", name, " of a job"));
      if (!S_ISDIR(folder.st_mode) || kind.f_type != TMPFS_MAGIC ||
          (::stat(name, &machines) == 0 && machines.st_dev == folder.st_dev)) {
        continue;  // the machine's
      }
      device_ = folder.st_dev;
      names_.clear();
      has_own_ = false;
      RK_RETURN_IF_ERROR(Enter(std::move(place), name, 1).status());
      if (name != absl::string_view("/tmp")) taken_.record.set_shared_memory(has_own_);
      if (has_own_) RK_RETURN_IF_ERROR(CheckIsNoLink(root, name));
    }
    return Fits() ? absl::OkStatus() : TooMuch();
  }

  TakenTemporaryFiles Take() && { return std::move(taken_); }

 private:
  // What lies in one folder of the topmost level, for the error.
  struct Share {
    uint64_t bytes = 0;
    size_t files = 0;
  };

  bool Fits() const { return bytes_ <= limits_.bytes && seen_ <= limits_.files; }

  // The kernel's names of what is open there begin otherwise: they would be taken for the machine's.
  static absl::Status CheckIsNoLink(const std::string& root, const char* name) {
    const absl::StatusOr<std::string> target = ReadLink(absl::StrCat(root, name));
    if (!target.ok()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "once loaded it has files in its own ", name, ", which no image takes on a machine where ", name,
        " is a symbolic link (to ", absl::CHexEscape(*target), "): mount that folder on ", name,
        " instead ('mount --bind')"));
  }

  // False: it was only made as a way to what is mounted below.
  absl::StatusOr<bool> Enter(UniqueFd place, const std::string& path, size_t depth) {
    if (depth > kDeepest) {
      return absl::FailedPreconditionError(absl::StrCat("once loaded it has folders in ",
                                                        absl::CHexEscape(path), ", more than ", kDeepest,
                                                        " below one another, which no image takes"));
    }
    const auto names = ListDirectory(absl::StrCat("/proc/self/fd/", place.get()));
    if (!names.ok())
      return Annotate(names.status(), absl::StrCat("looking at ", absl::CHexEscape(path), " of a job"));
    bool mounted = false, other = false;
    for (const std::string& name : *names) {
      const std::string below = absl::StrCat(path, "/", name);
      if (without_.contains(below) || seen_ > kMostCounted) continue;
      UniqueFd entry(::openat(place.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      struct stat info;
      if (!entry.valid() && errno == ENOENT) continue;  // where the job runs
      if (!entry.valid() || ::fstat(entry.get(), &info) != 0)
        return ErrnoStatus(errno, absl::StrCat("looking at ", absl::CHexEscape(below), " of a job"));
      if (info.st_dev != device_) {
        mounted = true;
        continue;
      }
      if (depth == 1) top_ = &shares_[below];
      RK_ASSIGN_OR_RETURN(const bool taken, Look(std::move(entry), info, below, depth));
      (taken ? other : mounted) = true;
      has_own_ |= taken;
    }
    return other || !mounted;
  }

  absl::StatusOr<bool> Look(UniqueFd entry, const struct stat& info, const std::string& path, size_t depth) {
    ++seen_;
    ++top_->files;
    const bool known = !S_ISDIR(info.st_mode) && !S_ISLNK(info.st_mode) && names_.contains(info.st_ino);
    const uint64_t has = S_ISREG(info.st_mode) && !known ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
    bytes_ += has;
    top_->bytes += has;
    const int at = taken_.record.files_size();
    v1::TemporaryFile file;
    file.set_path(path);
    file.set_mode(info.st_mode);
    file.set_uid(info.st_uid);
    file.set_gid(info.st_gid);
    file.set_modified_ns(Nanos(info.st_mtim));
    if (known) {
      file.set_target(names_[info.st_ino]);
    } else if (S_ISLNK(info.st_mode)) {
      char target[PATH_MAX];
      const ssize_t length = ::readlinkat(entry.get(), "", target, sizeof target);
      if (length < 0)
        return ErrnoStatus(errno, absl::StrCat("reading ", absl::CHexEscape(path), " of a job"));
      file.set_target(std::string(target, static_cast<size_t>(length)));
    } else if (S_ISREG(info.st_mode)) {
      file.set_size(static_cast<uint64_t>(info.st_size));
      if (take_ && Fits()) RK_RETURN_IF_ERROR(Read(entry.get(), &file));
    } else if (!S_ISDIR(info.st_mode) && !S_ISFIFO(info.st_mode)) {
      return true;
    }
    if (take_ && Fits()) *taken_.record.add_files() = std::move(file);
    if (!S_ISDIR(info.st_mode)) {
      names_.emplace(info.st_ino, path);
      return true;
    }
    RK_ASSIGN_OR_RETURN(const bool own, Enter(std::move(entry), path, depth + 1));
    if (own || !take_) return own;
    taken_.record.mutable_files()->DeleteSubrange(at, taken_.record.files_size() - at);
    return false;
  }

  absl::Status Read(int place, v1::TemporaryFile* file) {
    const std::string what = absl::StrCat("reading ", absl::CHexEscape(file->path()), " of a job");
    absl::StatusOr<UniqueFd> opened = OpenFileAt(place);
    if (!opened.ok()) return Annotate(opened.status(), what);
    for (off_t at = 0; static_cast<uint64_t>(at) < file->size();) {
      at = ::lseek(opened->get(), at, SEEK_DATA);
      if (at < 0 && errno == ENXIO) break;
      const off_t hole = at < 0 ? at : ::lseek(opened->get(), at, SEEK_HOLE);
      if (hole < 0 || ::lseek(opened->get(), at, SEEK_SET) < 0) return ErrnoStatus(errno, what);
      const uint64_t end = std::min(static_cast<uint64_t>(hole), file->size());
      const uint64_t length = end - static_cast<uint64_t>(at);
      const size_t before = taken_.contents.size();
      // A process that does not belong to the job may still write.
      if (before + length > limits_.bytes) return TooMuch();
      taken_.contents.resize(before + length);
      RK_RETURN_IF_ERROR(ReadFully(opened->get(), taken_.contents.data() + before, length, what));
      v1::FileExtent* extent = file->add_extents();
      extent->set_offset(static_cast<uint64_t>(at));
      extent->set_length(length);
      at = hole;
    }
    return absl::OkStatus();
  }

  absl::Status TooMuch() const {
    const bool by_bytes = bytes_ > limits_.bytes || seen_ <= limits_.files;
    auto most = std::max_element(shares_.begin(), shares_.end(), [&](const auto& a, const auto& b) {
      return by_bytes ? a.second.bytes < b.second.bytes : a.second.files < b.second.files;
    });
    const std::string path = most == shares_.end() ? "/tmp" : absl::CHexEscape(most->first);
    if (by_bytes) {
      return absl::FailedPreconditionError(absl::StrCat(
          "once loaded it has ", FormatBytes(bytes_), " in its own /tmp and /dev/shm, most of it in ", path,
          ", and an image takes no more than ", FormatBytes(limits_.bytes), " of that"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("once loaded it has ", seen_, seen_ > kMostCounted ? " or more" : "",
                     " files in its own /tmp and /dev/shm, most of them in ", path,
                     ", and an image takes no more than ", limits_.files, " of these"));
  }

  const std::set<std::string>& without_;
  const TemporaryLimits limits_;
  const bool take_;
  TakenTemporaryFiles taken_;
  bool has_own_ = false;  // in this folder, besides ways to what is mounted
  dev_t device_ = 0;
  uint64_t bytes_ = 0;
  size_t seen_ = 0;
  std::map<ino_t, std::string> names_;  // of what is no folder, the first ones
  std::map<std::string, Share> shares_;
  Share* top_ = nullptr;
};

// What processes have mapped of their /dev/shm, which goes into the image as memory that they share.
class MappedSharedMemory {
 public:
  explicit MappedSharedMemory(std::string root) : root_(std::move(root)) {}

  void AddOf(pid_t process) {
    std::map<ino_t, uint64_t> lengths;
    // "7f00-8000 rw-s 00000000 00:1b 7      /dev/shm/x"
    ForEachLineOf(absl::StrCat("/proc/", process, "/maps"), [&](absl::string_view line) {
      const size_t rights = line.find(' '), name = line.find(" /dev/shm/");
      if (name == absl::string_view::npos || rights + 4 >= name || line[rights + 4] != 's') return true;
      const std::vector<absl::string_view> words =
          absl::StrSplit(line.substr(0, name), ' ', absl::SkipEmpty());
      const std::pair<absl::string_view, absl::string_view> range = absl::StrSplit(words[0], '-');
      uint64_t begin = 0, end = 0, inode = 0;
      if (words.size() < 5 || !absl::SimpleHexAtoi(range.first, &begin) ||
          !absl::SimpleHexAtoi(range.second, &end) || !absl::SimpleAtoi(words[4], &inode))
        return true;
      const std::string path(line.substr(name + 1));
      paths_.insert(path);
      struct stat info;
      const bool named = ::lstat((root_ + path).c_str(), &info) == 0 && info.st_ino == inode;
      if (named) {
        bytes_[inode] = static_cast<uint64_t>(info.st_blocks) * 512;
      } else {
        lengths[inode] += end - begin;
      }
      return true;
    });
    for (const auto& [inode, length] : lengths) bytes_[inode] = std::max(bytes_[inode], length);
  }

  const std::set<std::string>& paths() const { return paths_; }
  uint64_t bytes() const {
    uint64_t all = 0;
    for (const auto& [inode, bytes] : bytes_) all += bytes;
    return all;
  }

 private:
  const std::string root_;
  std::set<std::string> paths_;
  std::map<ino_t, uint64_t> bytes_;
};

}  // namespace

absl::StatusOr<TakenTemporaryFiles> TakeTemporaryFiles(const std::string& root,
                                                       const std::set<std::string>& without,
                                                       const TemporaryLimits& limits) {
  Walk walk(without, limits, /*take=*/true);
  RK_RETURN_IF_ERROR(walk.Go(root));
  return std::move(walk).Take();
}

absl::Status CheckTemporaryFiles(const std::string& root, const std::vector<pid_t>& processes,
                                 const TemporaryLimits& limits) {
  MappedSharedMemory mapped(root);
  for (const pid_t pid : processes) mapped.AddOf(pid);
  if (mapped.bytes() > limits.mapped_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "once loaded it has ", FormatBytes(mapped.bytes()), " of /dev/shm mapped (", *mapped.paths().begin(),
        "), and an image takes no more than ", FormatBytes(limits.mapped_bytes), " of that"));
  }
  return Walk(mapped.paths(), limits, /*take=*/false).Go(root);
}

}  // namespace rekindle::ckpt
