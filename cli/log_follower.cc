#include "cli/log_follower.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

constexpr size_t kRemembered = 1 << 20;
constexpr size_t kCompared = 4096;
constexpr size_t kCopyBytes = 64 << 10;
// The log, and what had its name before.
constexpr size_t kFiles = 4;
// Where the folder can't be watched.
constexpr int kLookAtFolderMs = 1000;

std::string Read(int fd, uint64_t begin, uint64_t end) {
  std::string content(end - begin, '\0');
  size_t got = 0;
  while (got < content.size()) {
    const ssize_t n =
        ::pread(fd, content.data() + got, content.size() - got, static_cast<off_t>(begin + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  content.resize(got);
  return content;
}

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// What `shown` holds is the content up to `until`.
bool IsAsShown(int fd, uint64_t size, uint64_t until, const std::string& shown) {
  if (size < until) return false;
  // It may have been cut off and have grown again since the last look. Output does not repeat over this
  // length.
  const size_t length = std::min(shown.size(), kCompared);
  return absl::EndsWith(shown, Read(fd, until - length, until));
}

// Where the log is not what was shown of it any more; at `until` when it is. Until then the bytes that are
// missing at its end may come again.
uint64_t FirstDifference(int fd, uint64_t size, uint64_t until, const std::string& shown) {
  const uint64_t begin = until - shown.size();
  if (size < begin) return size;  // so far back that nothing is known of it
  const std::string now = Read(fd, begin, std::min(size, until));
  const auto [there, was] = std::mismatch(now.begin(), now.end(), shown.begin());
  return there == now.end() ? until : begin + static_cast<uint64_t>(was - shown.begin());
}

// As of `| head`.
bool HasNoReader(int pipe) {
  pollfd entry{pipe, 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogFollower>> LogFollower::Start(const std::string& path, uint64_t offset,
                                                                int output) {
  UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)), stop(::eventfd(0, EFD_CLOEXEC));
  if (!changes.valid() || !stop.valid()) return ErrnoStatus(errno, absl::StrCat("following ", path));
  RK_ASSIGN_OR_RETURN(UniqueFd log, OpenFile(path, O_RDONLY | O_NOCTTY));
  std::unique_ptr<LogFollower> follower(
      new LogFollower(path, std::move(log), std::move(changes), std::move(stop), offset, output));
  if (follower->files_.back()->watch < 0) return ErrnoStatus(errno, absl::StrCat("following ", path));
  follower->thread_ = std::thread(&LogFollower::Loop, follower.get());
  return follower;
}

LogFollower::LogFollower(const std::string& path, UniqueFd log, UniqueFd changes, UniqueFd stop,
                         uint64_t offset, int output)
    : path_(path),
      folder_(std::filesystem::absolute(path).parent_path()),
      name_(std::filesystem::path(path).filename()),
      changes_(std::move(changes)),
      stop_(std::move(stop)),
      output_(output) {
  watches_folder_ = ::inotify_add_watch(changes_.get(), folder_.c_str(),
                                        IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_ONLYDIR) >= 0;
  File& file = *files_.emplace_back(std::make_unique<File>());
  file.fd = std::move(log);
  const uint64_t begin = offset - std::min<uint64_t>(offset, kRemembered);
  file.shown = Read(file.fd.get(), begin, offset);
  // It may just be cut off.
  file.shown_until = std::min<uint64_t>(offset, begin + file.shown.size());
  Watch(file);
}

absl::Status LogFollower::Finish() {
  if (!thread_.joinable()) return failed_;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
  return failed_;
}

void LogFollower::Watch(File& file) {
  // By its descriptor: the name may mean another file by now.
  file.watch = ::inotify_add_watch(changes_.get(), absl::StrCat("/proc/self/fd/", file.fd.get()).c_str(),
                                   IN_MODIFY | IN_MOVE_SELF | IN_ATTRIB);
}

void LogFollower::Unwatch(const File& file) {
  if (file.watch >= 0) ::inotify_rm_watch(changes_.get(), file.watch);
}

void LogFollower::TakeEvents() {
  alignas(inotify_event) char events[4096];
  for (ssize_t n; (n = ::read(changes_.get(), events, sizeof events)) > 0;) {
    for (ssize_t at = 0; at < n;) {
      inotify_event event;
      std::memcpy(&event, events + at, sizeof event);
      const absl::string_view name = event.len > 0 ? events + at + sizeof event : "";
      at += static_cast<ssize_t>(sizeof event + event.len);
      // docs/files.md: what is cut off, and what is made again.
      if (absl::StartsWith(name, absl::StrCat(name_, ".rekindle-tail-")) ||
          (absl::StartsWith(name, absl::StrCat(".", name_, ".")) && absl::EndsWith(name, ".rekindle-new"))) {
        rolled_back_ = true;
        was_cut_ = false;
      }
    }
  }
}

bool LogFollower::FollowName() {
  File& last = *files_.back();
  struct stat named, known;
  if (::stat(path_.c_str(), &named) != 0 || ::fstat(last.fd.get(), &known) != 0) return false;
  if (IsSameFile(named, known) || !S_ISREG(named.st_mode)) return false;
  absl::StatusOr<UniqueFd> opened = OpenFile(path_, O_RDONLY | O_NOCTTY);
  if (!opened.ok() || ::fstat(opened->get(), &named) != 0 || IsSameFile(named, known)) return false;
  // It may have its old name again.
  const auto before = std::find_if(files_.begin(), files_.end(), [&](const std::unique_ptr<File>& file) {
    struct stat info;
    return ::fstat(file->fd.get(), &info) == 0 && IsSameFile(info, named);
  });
  if (before != files_.end()) {
    std::rotate(before, before + 1, files_.end());
    return true;
  }
  TakeEvents();
  if (rolled_back_) {
    // The same log, made again.
    Unwatch(last);
    last.fd = *std::move(opened);
    Watch(last);
    was_cut_ = true;
    return true;
  }
  File& file = *files_.emplace_back(std::make_unique<File>());
  file.fd = *std::move(opened);
  Watch(file);
  if (files_.size() > kFiles) {
    Unwatch(*files_.front());
    if (within_line_ == files_.front().get()) within_line_ = &file;
    files_.erase(files_.begin());
  }
  return true;
}

bool LogFollower::Put(absl::string_view text) {
  const absl::Status put = WriteFully(output_, text.data(), text.size(), "standard output");
  if (!put.ok() && !HasNoReader(output_)) failed_ = put;
  return put.ok();
}

bool LogFollower::Show(File& file, const std::string& text) {
  if (within_line_ != nullptr && within_line_ != &file && !Put("\n")) return false;
  if (!Put(text)) return false;
  within_line_ = text.back() == '\n' ? nullptr : &file;
  file.shown += text;
  if (file.shown.size() > 2 * kRemembered) file.shown.erase(0, file.shown.size() - kRemembered);
  return true;
}

bool LogFollower::BeginAnew(File& file, uint64_t size) {
  // What tells of a roll-back was there before the cut.
  TakeEvents();
  uint64_t differs = 0;
  if (rolled_back_ || !watches_folder_) {
    differs = FirstDifference(file.fd.get(), size, file.shown_until, file.shown);
    was_cut_ = true;
  }
  if (differs >= file.shown_until) return true;
  rolled_back_ = was_cut_ = false;
  const uint64_t begin = file.shown_until - file.shown.size();
  // What begins anew is shown as whole lines.
  file.shown.resize(differs > begin ? differs - begin : 0);
  file.shown.resize(file.shown.rfind('\n') + 1);  // npos: all of it
  file.shown_until = differs > begin ? begin + file.shown.size() : differs;
  if (within_line_ == &file) {
    if (!Put("\n")) return false;
    within_line_ = nullptr;
  }
  return true;
}

bool LogFollower::Copy(File& file) {
  for (;;) {
    struct stat info;
    if (::fstat(file.fd.get(), &info) != 0) return true;
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (!IsAsShown(file.fd.get(), size, file.shown_until, file.shown)) {
      if (!BeginAnew(file, size)) return false;
    } else if (was_cut_ && &file == files_.back().get()) {
      rolled_back_ = was_cut_ = false;  // all of it is there again
    }
    if (size <= file.shown_until) return true;  // or it is being written again
    const std::string text =
        Read(file.fd.get(), file.shown_until, std::min<uint64_t>(size, file.shown_until + kCopyBytes));
    if (text.empty()) return true;
    if (!Show(file, text)) return false;
    file.shown_until += text.size();
  }
}

bool LogFollower::CopyWhatIsThere() {
  TakeEvents();
  do {
    for (const std::unique_ptr<File>& file : files_) {
      if (!Copy(*file)) return false;
    }
  } while (FollowName());
  return true;
}

void LogFollower::Loop() {
  // The watches are older than the first copy: nothing appended in between is missed.
  while (CopyWhatIsThere()) {
    pollfd entries[] = {{changes_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, watches_folder_ ? -1 : kLookAtFolderMs) < 0 && errno != EINTR) {
      failed_ = ErrnoStatus(errno, absl::StrCat("following ", path_));
      return;
    }
    if (entries[1].revents != 0) {
      CopyWhatIsThere();
      return;
    }
  }
}

}  // namespace rekindle::cli
