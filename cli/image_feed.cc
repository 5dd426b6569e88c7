#include "cli/image_feed.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

constexpr size_t kReadBytes = 1u << 20;

constexpr int kLookEveryMs = 1000;

enum class Input { kThere, kStopped, kGivenUp };

// Until `fd` has something or has ended, or `stop` is readable.
Input AwaitInput(int fd, int stop, absl::FunctionRef<bool(absl::Duration waited)> given_up) {
  for (const Stopwatch watch;;) {
    pollfd entries[] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
    const int n = ::poll(entries, 2, kLookEveryMs);
    if (n == 0 && given_up(absl::Seconds(watch.seconds()))) return Input::kGivenUp;
    if (n <= 0) continue;
    if (entries[1].revents != 0) return Input::kStopped;
    if (entries[0].revents != 0) return Input::kThere;
  }
}

bool Never(absl::Duration) { return false; }

// `*begun`: something has come.
absl::StatusOr<bool> FeedUntil(int fd, ImageReceiver& receiver, bool* begun,
                               absl::FunctionRef<bool(absl::Duration waited)> given_up) {
  for (;;) {
    const Input input = AwaitInput(fd, receiver.ended_fd(), given_up);
    if (input != Input::kThere) return input == Input::kGivenUp;
    std::string data(kReadBytes, '\0');
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading the image");
    if (n == 0) return true;
    *begun = true;
    data.resize(static_cast<size_t>(n));
    if (!receiver.Write(std::move(data))) return false;
  }
}

}  // namespace

absl::StatusOr<bool> Feed(int fd, ImageReceiver& receiver,
                          absl::FunctionRef<bool(absl::Duration waited)> given_up) {
  bool begun = false;
  return FeedUntil(fd, receiver, &begun, given_up);
}

absl::StatusOr<bool> Feed(int fd, ImageReceiver& receiver, absl::Duration patience) {
  bool begun = false, stalled = false;
  absl::StatusOr<bool> fed = FeedUntil(
      fd, receiver, &begun, [&](absl::Duration waited) { return stalled = begun && waited >= patience; });
  if (!stalled) return fed;
  return absl::DeadlineExceededError(absl::StrCat(
      "it stops in the middle: for ", absl::FormatDuration(patience),
      " nothing came, and what an image shares with others stays in the store as long as it comes. "
      "Nothing of it is left; send it once more (REKINDLE_STREAM_TIMEOUT: so many seconds are waited, 0 for "
      "ever)"));
}

void Drain(int fd, int stop) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
  std::string data(kReadBytes, '\0');
  while (AwaitInput(fd, stop, Never) == Input::kThere) {
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n == 0 || (n < 0 && errno != EINTR)) return;
  }
}

}  // namespace rekindle::cli
