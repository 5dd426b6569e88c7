// Logging to standard error, one line a message: "PROGRAM: warning: text". Thread-safe. Errors that a caller
// can handle are returned as absl::Status and not logged; the log is for what nobody waits for.
#pragma once

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Messages below `level` are dropped. The default is kWarning; the daemon uses kInfo, `-v` kDebug.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void Log(LogLevel level, absl::string_view message);

// `message` as it is logged: paths and names in it are others' to choose, and must not look like lines of
// ours. Line breaks become " | ", with the indentation after them; other control characters, and what is no
// UTF-8, become "\xNN".
std::string LogLine(absl::string_view message);

// For what others can cause as often as they like: a line in a second, and how many were left out before it.
class SparingLog {
 public:
  void operator()(LogLevel level, absl::string_view message) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // of SteadyNow()
  size_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle
