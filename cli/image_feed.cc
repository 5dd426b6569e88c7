#include "cli/image_feed.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/status.h"

namespace rekindle::cli {
namespace {

constexpr size_t kReadBytes = 1u << 20;

// Until `fd` has something, or has ended. False: until `stop` is readable.
bool AwaitInput(int fd, int stop) {
  for (;;) {
    pollfd entries[] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return false;
    if (entries[0].revents != 0) return true;
  }
}

}  // namespace

absl::StatusOr<bool> Feed(int fd, ImageReceiver& receiver) {
  for (;;) {
    if (!AwaitInput(fd, receiver.ended_fd())) return false;
    std::string data(kReadBytes, '\0');
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading the image");
    if (n == 0) return true;
    data.resize(static_cast<size_t>(n));
    if (!receiver.Write(std::move(data))) return false;
  }
}

void Drain(int fd, int stop) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
  std::string data(kReadBytes, '\0');
  while (AwaitInput(fd, stop)) {
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n == 0 || (n < 0 && errno != EINTR)) return;
  }
}

}  // namespace rekindle::cli
