#include "restore/lock_check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/shown_command.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "restore/criu_files.h"

namespace rekindle::restore {
namespace {

using criu::FileLock;

// Nothing tells when somebody else's lock is given back, so one looks again, less and less often.
constexpr int kFirstLockPollMs = 2;
constexpr int kLastLockPollMs = 50;
constexpr size_t kMostHoldersTold = 3;
constexpr uint64_t kToTheEnd = std::numeric_limits<uint64_t>::max();

struct Range {
  uint64_t first = 0, last = kToTheEnd;
  bool Overlaps(const Range& other) const { return first <= other.last && other.first <= last; }
};

Range RangeOf(const FileLock& lock) {
  Range range;
  range.first = static_cast<uint64_t>(lock.start);
  if (lock.length > 0) range.last = range.first + static_cast<uint64_t>(lock.length) - 1;
  return range;
}

// As a process has it through one of its descriptors.
struct HeldLock {
  pid_t pid = 0;
  dev_t device = 0;
  ino_t inode = 0;
  FileLock::Kind kind = FileLock::Kind::kFlock;
  bool exclusive = false;
  Range range;

  bool IsOf(const struct stat& file) const { return device == file.st_dev && inode == file.st_ino; }
};

// "lock:	1: POSIX  ADVISORY  WRITE 1234 fe:00:5310821 10 EOF", as in /proc/locks. False: of another
// kind.
bool ParseLockLine(absl::string_view line, HeldLock* lock) {
  const std::vector<absl::string_view> f =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
  if (f.size() < 9 || f[0] != "lock:") return false;
  if (f[2] == "FLOCK") {
    lock->kind = FileLock::Kind::kFlock;
  } else if (f[2] == "POSIX") {
    lock->kind = FileLock::Kind::kPosix;
  } else if (f[2] == "OFDLCK") {
    lock->kind = FileLock::Kind::kOfd;
  } else {
    return false;
  }
  lock->exclusive = f[4] == "WRITE";
  if (!absl::SimpleAtoi(f[7], &lock->range.first)) return false;
  return f[8] == "EOF" || absl::SimpleAtoi(f[8], &lock->range.last);
}

// Each process tells its locks beside its descriptors. /proc/locks has a flock under whoever took it, who may
// be gone while his children hold it, and an OFD lock under nobody.
void AddLocksHeldBy(pid_t pid, std::vector<HeldLock>* locks) {
  const std::string folder = absl::StrCat("/proc/", pid);
  const auto descriptors = ListDirectory(absl::StrCat(folder, "/fdinfo"));
  if (!descriptors.ok()) return;
  for (const std::string& fd : *descriptors) {
    const std::string text = ReadFile(absl::StrCat(folder, "/fdinfo/", fd)).value_or("");
    struct stat file;
    // In this order: a stat of what lies on a server that is gone does not return.
    if (!absl::StrContains(text, "\nlock:")) continue;
    if (::stat(absl::StrCat(folder, "/fd/", fd).c_str(), &file) != 0) continue;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      HeldLock lock;
      lock.pid = pid;
      lock.device = file.st_dev;
      lock.inode = file.st_ino;
      if (ParseLockLine(line, &lock)) locks->push_back(lock);
    }
  }
}

bool IsInTheWay(const HeldLock& held, const FileLock& wanted) {
  const bool flock = wanted.kind == FileLock::Kind::kFlock;
  return flock == (held.kind == FileLock::Kind::kFlock) && (held.exclusive || wanted.exclusive) &&
         held.range.Overlaps(RangeOf(wanted));
}

bool IsTaken(int file, const FileLock& lock) {
  if (lock.kind == FileLock::Kind::kFlock) {
    if (::flock(file, (lock.exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) return errno == EWOULDBLOCK;
    ::flock(file, LOCK_UN);
    return false;
  }
  // As for an OFD lock of our own, which all POSIX and OFD locks of others are in the way of.
  struct flock query {};
  query.l_type = lock.exclusive ? F_WRLCK : F_RDLCK;
  query.l_whence = SEEK_SET;
  query.l_start = lock.start;
  query.l_len = lock.length;
  return ::fcntl(file, F_OFD_GETLK, &query) == 0 && query.l_type != F_UNLCK;
}

// The kernel is asked for each lock. /proc/locks would show nothing of other machines (NFS) and other PID
// namespaces, and has device numbers that stat() does not on btrfs and overlayfs. For a flock there is no
// question, so it is taken and given back at once: another program that tries it in this moment would find it
// taken for good in the next, by the job.
std::vector<const JobLock*> FindTaken(const std::vector<JobLock>& locks) {
  std::map<absl::string_view, std::vector<const JobLock*>> by_path;
  for (const JobLock& lock : locks) by_path[lock.path].push_back(&lock);
  std::vector<HeldLock> ours;
  AddLocksHeldBy(::getpid(), &ours);
  std::vector<const JobLock*> taken;
  for (const auto& [path, wanted] : by_path) {
    struct stat info;
    if (::stat(wanted[0]->path.c_str(), &info) != 0) continue;
    // Closing a file gives back all POSIX locks that the process has of it, so none of these is opened.
    const bool keep_closed = std::any_of(ours.begin(), ours.end(), [&info](const HeldLock& lock) {
      return lock.IsOf(info) && lock.kind == FileLock::Kind::kPosix;
    });
    const UniqueFd file = keep_closed ? UniqueFd() : OpenRegularFile(wanted[0]->path);
    for (const JobLock* lock : wanted) {
      const bool by_us = keep_closed && std::any_of(ours.begin(), ours.end(), [&](const HeldLock& held) {
                           return held.IsOf(info) && IsInTheWay(held, lock->lock);
                         });
      if (by_us || (file.valid() && IsTaken(file.get(), lock->lock))) taken.push_back(lock);
    }
  }
  return taken;
}

std::string Describe(const FileLock& lock) {
  const char* how = lock.exclusive ? "exclusive" : "shared";
  if (lock.kind == FileLock::Kind::kFlock) return absl::StrCat(how, " flock");
  const Range range = RangeOf(lock);
  return absl::StrCat(how, lock.kind == FileLock::Kind::kPosix ? " POSIX lock" : " OFD lock",
                      range.last != kToTheEnd ? absl::StrCat(" of bytes ", range.first, " to ", range.last)
                      : range.first > 0       ? absl::StrCat(" from byte ", range.first, " on")
                                              : "");
}

std::string Describe(const JobLock& wanted, const std::vector<HeldLock>& held) {
  std::vector<std::string> holders;
  bool more = false;
  struct stat info;
  if (::stat(wanted.path.c_str(), &info) == 0) {
    pid_t last = 0;  // a process may have several locks in the way
    for (const HeldLock& lock : held) {
      if (!lock.IsOf(info) || !IsInTheWay(lock, wanted.lock) || lock.pid == last) continue;
      last = lock.pid;
      more = holders.size() == kMostHoldersTold;
      if (more) break;
      holders.push_back(absl::StrCat("PID ", lock.pid, " (", ShownCommandOf(lock.pid), ")"));
    }
  }
  return absl::StrCat(
      wanted.path, " (", Describe(wanted.lock), ") is locked by ",
      holders.empty() ? "another process, which can't be seen from here" : absl::StrJoin(holders, ", "),
      more ? ", …" : "");
}

absl::Status Refusal(const std::vector<const JobLock*>& taken) {
  std::vector<HeldLock> held;
  for (pid_t pid : ListProcesses()) AddLocksHeldBy(pid, &held);
  std::vector<std::string> told;
  for (const JobLock* lock : taken) {
    if (told.size() == kMostHoldersTold) break;
    told.push_back(Describe(*lock, held));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      kLocksInUse, ": ", absl::StrJoin(told, "; "),
      taken.size() > told.size() ? absl::StrCat("; and ", taken.size() - told.size(), " more") : "",
      ". End what holds them, or wait until it gives them back, then restore again"));
}

// Which regular files a process of the image has open: their ids, by descriptor.
absl::StatusOr<std::map<int, uint32_t>> DescriptorsOf(const store::ImageReader& image, pid_t pid) {
  RK_ASSIGN_OR_RETURN(const std::string ids, ReadCriuFileIfAny(image, absl::StrCat("ids-", pid, ".img")));
  if (ids.empty()) return std::map<int, uint32_t>();
  RK_ASSIGN_OR_RETURN(const uint32_t table, criu::ParseDescriptorsId(ids));
  RK_ASSIGN_OR_RETURN(const std::string descriptors,
                      ReadCriuFileIfAny(image, absl::StrCat("fdinfo-", table, ".img")));
  if (descriptors.empty()) return std::map<int, uint32_t>();
  return criu::ParseRegularDescriptors(descriptors);
}

}  // namespace

absl::StatusOr<std::vector<JobLock>> LocksOfJob(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string content, ReadCriuFileIfAny(image, "filelocks.img"));
  if (content.empty()) return std::vector<JobLock>();
  RK_ASSIGN_OR_RETURN(const std::vector<FileLock> locks, criu::ParseFileLocks(content));
  if (locks.empty()) return std::vector<JobLock>();

  RK_ASSIGN_OR_RETURN(const std::string files, ReadCriuFileIfAny(image, "files.img"));
  RK_ASSIGN_OR_RETURN(const std::string remaps, ReadCriuFileIfAny(image, "remap-fpath.img"));
  RK_ASSIGN_OR_RETURN(std::vector<criu::RegularFile> regular, criu::ParseRegularFiles(files, remaps));
  std::map<uint32_t, std::string> paths;  // by file id
  for (criu::RegularFile& file : regular) {
    if (!file.ghost) paths[file.id] = std::move(file.path);
  }
  std::map<pid_t, std::map<int, uint32_t>> descriptors;
  std::vector<JobLock> found;
  for (const FileLock& lock : locks) {
    auto [process, is_new] = descriptors.try_emplace(lock.pid);
    if (is_new) {
      RK_ASSIGN_OR_RETURN(process->second, DescriptorsOf(image, lock.pid));
    }
    const auto file = process->second.find(lock.fd);
    if (file == process->second.end()) continue;
    const auto path = paths.find(file->second);
    if (path != paths.end()) found.push_back({path->second, lock});
  }
  return found;
}

absl::Status CheckLocksAreFree(const std::vector<JobLock>& locks, int cancel_fd, absl::Duration patience) {
  if (locks.empty()) return absl::OkStatus();
  const Deadline deadline(patience);
  for (int interval_ms = kFirstLockPollMs;; interval_ms = std::min(interval_ms * 2, kLastLockPollMs)) {
    const std::vector<const JobLock*> taken = FindTaken(locks);
    if (taken.empty()) return absl::OkStatus();
    if (deadline.passed()) return Refusal(taken);
    pollfd cancelled{cancel_fd, POLLIN, 0};
    if (::poll(&cancelled, 1, interval_ms) > 0) return absl::CancelledError("the restore was cancelled");
  }
}

}  // namespace rekindle::restore
