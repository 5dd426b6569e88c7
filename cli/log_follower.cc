#include "cli/log_follower.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::cli {

absl::StatusOr<std::unique_ptr<LogFollower>> LogFollower::Start(const std::string& path, uint64_t offset,
                                                                int output) {
  RK_ASSIGN_OR_RETURN(UniqueFd log, OpenFile(path, O_RDONLY | O_NOCTTY));
  UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)), stop(::eventfd(0, EFD_CLOEXEC));
  if (!changes.valid() || !stop.valid() || ::inotify_add_watch(changes.get(), path.c_str(), IN_MODIFY) < 0) {
    return ErrnoStatus(errno, absl::StrCat("following ", path));
  }
  if (::lseek(log.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    return ErrnoStatus(errno, absl::StrCat("following ", path));
  }
  return std::unique_ptr<LogFollower>(
      new LogFollower(std::move(log), std::move(changes), std::move(stop), output));
}

LogFollower::LogFollower(UniqueFd log, UniqueFd changes, UniqueFd stop, int output)
    : log_(std::move(log)), changes_(std::move(changes)), stop_(std::move(stop)), output_(output) {
  thread_ = std::thread(&LogFollower::Loop, this);
}

void LogFollower::Finish() {
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

bool LogFollower::CopyWhatIsThere() {
  char buffer[64 << 10];
  for (;;) {
    ssize_t got = ::read(log_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    if (!WriteFully(output_, buffer, static_cast<size_t>(got), "standard output").ok()) return false;
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
