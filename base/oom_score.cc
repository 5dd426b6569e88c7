#include "base/oom_score.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"

namespace rekindle {
namespace {

constexpr char kOwnFile[] = "/proc/self/oom_score_adj";
// Others of the machine's services go first, too, but sshd and such.
constexpr int kSpared = -900;

struct Began {
  std::optional<int> score;  // before it was spared
};
Began& TheBeginning() {
  static Began began{OwnOomScore()};
  return began;
}

}  // namespace

std::optional<int> OwnOomScore() {
  int score = 0;
  if (!absl::SimpleAtoi(ReadFile(kOwnFile).value_or(""), &score)) return std::nullopt;
  return score;
}

void SpareFromOutOfMemory() {
  const std::optional<int> before = TheBeginning().score;
  if (!before || *before <= kSpared || TakeOnOomScore(kSpared)) return;
  Log(LogLevel::kDebug, absl::StrCat("the kernel is not asked to spare this process when memory runs out: ",
                                     std::strerror(errno)));
}

std::optional<int> OomScoreForOthers() {
  const std::optional<int> before = TheBeginning().score;
  if (!before || OwnOomScore() == before) {
    // A service manager may have spared it (OOMScoreAdjust=): that is not meant for what it starts.
    if (before.value_or(0) < 0) return 0;
    return std::nullopt;
  }
  return std::max(*before, 0);
}

bool TakeOnOomScore(int score) {
  // No allocation: this may be between fork and exec.
  char digits[8];
  size_t at = sizeof digits;
  for (unsigned rest = static_cast<unsigned>(score < 0 ? -score : score); at > 1;) {
    digits[--at] = static_cast<char>('0' + rest % 10);
    rest /= 10;
    if (rest == 0) break;
  }
  if (score < 0) digits[--at] = '-';
  const int file = ::open(kOwnFile, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t written = ::write(file, digits + at, sizeof digits - at);
  const int error = errno;
  ::close(file);
  errno = error;
  return written == static_cast<ssize_t>(sizeof digits - at);
}

}  // namespace rekindle
