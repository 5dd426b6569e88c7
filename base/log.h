// Logging to standard error, one line a message: "PROGRAM: warning: text". Thread-safe. Errors that a caller
// can handle are returned as absl::Status and not logged; the log is for what nobody waits for.
#pragma once

#include "absl/strings/string_view.h"

namespace rekindle {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Messages below `level` are dropped. The default is kWarning; the daemon uses kInfo, `-v` kDebug.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void Log(LogLevel level, absl::string_view message);

}  // namespace rekindle
