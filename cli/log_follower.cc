#include "cli/log_follower.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

constexpr size_t kRemembered = 1 << 20;
constexpr size_t kCompared = 4096;
constexpr size_t kCopyBytes = 64 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<LogFollower>> LogFollower::Start(const std::string& path, uint64_t offset,
                                                                int output) {
  RK_ASSIGN_OR_RETURN(UniqueFd log, OpenFile(path, O_RDONLY | O_NOCTTY));
  UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)), stop(::eventfd(0, EFD_CLOEXEC));
  if (!changes.valid() || !stop.valid() || ::inotify_add_watch(changes.get(), path.c_str(), IN_MODIFY) < 0) {
    return ErrnoStatus(errno, absl::StrCat("following ", path));
  }
  return std::unique_ptr<LogFollower>(
      new LogFollower(std::move(log), std::move(changes), std::move(stop), offset, output));
}

LogFollower::LogFollower(UniqueFd log, UniqueFd changes, UniqueFd stop, uint64_t offset, int output)
    : log_(std::move(log)),
      changes_(std::move(changes)),
      stop_(std::move(stop)),
      output_(output),
      shown_until_(offset) {
  shown_ = Read(offset - std::min<uint64_t>(offset, kRemembered), offset);
  // It may just be cut off.
  shown_until_ = std::min<uint64_t>(offset, offset - std::min<uint64_t>(offset, kRemembered) + shown_.size());
  thread_ = std::thread(&LogFollower::Loop, this);
}

void LogFollower::Finish() {
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

std::string LogFollower::Read(uint64_t begin, uint64_t end) const {
  std::string content(end - begin, '\0');
  size_t got = 0;
  while (got < content.size()) {
    const ssize_t n =
        ::pread(log_.get(), content.data() + got, content.size() - got, static_cast<off_t>(begin + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  content.resize(got);
  return content;
}

bool LogFollower::IsAsShown(uint64_t size) const {
  if (size < shown_until_) return false;
  // It may have been cut off and have grown again since the last look. Output does not repeat over this
  // length.
  const size_t length = std::min(shown_.size(), kCompared);
  return absl::EndsWith(shown_, Read(shown_until_ - length, shown_until_));
}

uint64_t LogFollower::FirstDifference(uint64_t size) const {
  const uint64_t begin = shown_until_ - shown_.size();
  if (size < begin) return size;  // so far back that nothing is known of it
  const std::string now = Read(begin, std::min(size, shown_until_));
  const auto [there, was] = std::mismatch(now.begin(), now.end(), shown_.begin());
  return there == now.end() ? shown_until_ : begin + static_cast<uint64_t>(was - shown_.begin());
}

bool LogFollower::Show(const std::string& text) {
  if (!WriteFully(output_, text.data(), text.size(), "standard output").ok()) return false;
  within_line_ = text.back() != '\n';
  shown_ += text;
  if (shown_.size() > 2 * kRemembered) shown_.erase(0, shown_.size() - kRemembered);
  return true;
}

bool LogFollower::CopyWhatIsThere() {
  for (;;) {
    struct stat info;
    if (::fstat(log_.get(), &info) != 0) return true;
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (!IsAsShown(size)) {
      const uint64_t differs = FirstDifference(size);
      if (differs < shown_until_) {
        const uint64_t begin = shown_until_ - shown_.size();
        // What begins anew is shown as whole lines.
        shown_.resize(differs > begin ? differs - begin : 0);
        shown_.resize(shown_.rfind('\n') + 1);  // npos: all of it
        shown_until_ = differs > begin ? begin + shown_.size() : differs;
        if (within_line_ && !WriteFully(output_, "\n", 1, "standard output").ok()) return false;
        within_line_ = false;
      } else if (size < shown_until_) {
        return true;  // it is being written again
      }
    }
    if (size <= shown_until_) return true;
    const std::string text = Read(shown_until_, std::min<uint64_t>(size, shown_until_ + kCopyBytes));
    if (text.empty()) return true;
    if (!Show(text)) return false;
    shown_until_ += text.size();
  }
}

void LogFollower::Loop() {
  // The watch is older than the first copy: nothing appended in between is missed.
  while (CopyWhatIsThere()) {
    pollfd entries[] = {{changes_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) {
      CopyWhatIsThere();
      return;
    }
    char events[4096];
    while (::read(changes_.get(), events, sizeof events) > 0) {
    }
  }
}

}  // namespace rekindle::cli
