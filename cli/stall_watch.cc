#include "cli/stall_watch.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"

namespace rekindle::cli {
namespace {

constexpr uint64_t kLeastMoved = 64 << 10;
constexpr absl::Duration kTimeoutOfRclone = absl::Minutes(5);

// By all its system calls.
uint64_t BytesMovedBy(pid_t process) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", process, "/io"));
  uint64_t bytes = 0;
  if (!text.ok()) return bytes;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    uint64_t number = 0;
    const bool counts = absl::ConsumePrefix(&line, "rchar: ") || absl::ConsumePrefix(&line, "wchar: ");
    if (counts && absl::SimpleAtoi(line, &number)) bytes += number;
  }
  return bytes;
}

}  // namespace

bool StallWatch::Stalled(absl::Duration waited) {
  const uint64_t moved = BytesMovedBy(process_);
  if (waited < quiet_since_ || moved >= moved_ + kLeastMoved) {
    quiet_since_ = waited;
    moved_ = moved;
  }
  return waited - quiet_since_ >= patience_;
}

absl::Duration StallPatience(const char* timeout) {
  absl::Duration limit = kTimeoutOfRclone;
  double seconds = 0;
  if (timeout != nullptr && !absl::ParseDuration(timeout, &limit))
    limit = absl::SimpleAtod(timeout, &seconds) ? absl::Seconds(seconds) : kTimeoutOfRclone;
  return limit <= absl::ZeroDuration() ? absl::InfiniteDuration() : 2 * limit;
}

}  // namespace rekindle::cli
