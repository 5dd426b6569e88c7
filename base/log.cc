#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace rekindle {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};

absl::string_view Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void Log(LogLevel level, absl::string_view message) {
  if (!LogEnabled(level)) return;
  std::string line = absl::StrCat(program_invocation_short_name, ": ", Name(level), ": ", message, "\n");
  // One write per line keeps lines of several threads apart; a closed standard error is no reason to fail.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void SparingLog::operator()(LogLevel level, absl::string_view message) {
  size_t left_out = 0;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = SteadyNow();
    if (now < next_) {
      ++left_out_;
      return;
    }
    next_ = now + absl::Seconds(1);
    left_out = std::exchange(left_out_, 0);
  }
  Log(level, left_out == 0 ? std::string(message)
                           : absl::StrCat(message, " (and ", left_out, " such messages before it)"));
}

}  // namespace rekindle
