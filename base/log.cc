#include "base/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/utf8.h"

namespace rekindle {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};

struct LevelNames {
  LogLevel level;
  absl::string_view name, journal;  // the latter as sd-daemon(3) has it
};
constexpr LevelNames kLevels[] = {{LogLevel::kDebug, "debug", "<7>"},
                                  {LogLevel::kInfo, "info", "<6>"},
                                  {LogLevel::kWarning, "warning", "<4>"},
                                  {LogLevel::kError, "error", "<3>"}};

const LevelNames& NamesOf(LogLevel level) {
  return *std::find_if(std::begin(kLevels), std::end(kLevels) - 1,
                       [&](const LevelNames& names) { return names.level == level; });
}

// The journal takes the prefix off the line: by it `journalctl -p warning` finds what it is to find.
// systemd.exec(5) has JOURNAL_STREAM.
bool WritesToJournal() {
  const char* journal = ::getenv("JOURNAL_STREAM");
  struct stat output;
  return journal != nullptr && ::fstat(STDERR_FILENO, &output) == 0 &&
         absl::StrCat(output.st_dev, ":", output.st_ino) == journal;
}

// Line and paragraph separators, and what turns the direction of what follows (U+2028 to U+202E, U+2066 to
// U+2069).
bool IsTricky(absl::string_view character) {
  return (character >= "\xe2\x80\xa8" && character <= "\xe2\x80\xae") ||
         (character >= "\xe2\x81\xa6" && character <= "\xe2\x81\xa9");
}

}  // namespace

std::string LogLine(absl::string_view message) {
  std::vector<absl::string_view> lines = absl::StrSplit(message, '\n', absl::SkipWhitespace());
  for (size_t i = 1; i < lines.size(); ++i) lines[i] = absl::StripLeadingAsciiWhitespace(lines[i]);
  if (!lines.empty()) lines.back() = absl::StripTrailingAsciiWhitespace(lines.back());
  return ReplaceInText(absl::StrJoin(lines, " | "),
                       [](absl::string_view bytes, bool whole, std::string* line) {
                         if (whole && !IsControlCharacter(bytes) && !IsTricky(bytes)) {
                           line->append(bytes.data(), bytes.size());
                           return;
                         }
                         for (const char byte : bytes)
                           absl::StrAppendFormat(line, "\\x%02x", static_cast<uint8_t>(byte));
                       });
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void Log(LogLevel level, absl::string_view message) {
  if (!LogEnabled(level)) return;
  const LevelNames& names = NamesOf(level);
  const std::string line = absl::StrCat(WritesToJournal() ? names.journal : "", program_invocation_short_name,
                                        ": ", names.name, ": ", LogLine(message), "\n");
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
