// Reading the log streams of one function as one log.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

struct LogLine {
  absl::string_view instance;  // the stream
  absl::string_view text;      // without its end; any bytes
  int64_t unix_ns = 0;         // of the beginning of the invocation that it belongs to; followed: of now
};

struct LogReadOptions {
  std::optional<uint32_t> tail_lines;  // of all streams together; nothing: all
  int64_t since_unix_ns = 0;           // only invocations that were in work since; 0: all
  bool follow = false;
  uid_t owner = 0;             // streams of other users' functions, once of this name, are passed over
  std::function<bool()> stop;  // asked several times a second while there is nothing to do; may be null
};

// Takes a line; false: enough. Longer lines than 64 KiB come in parts.
using LogLineSink = std::function<bool(const LogLine& line)>;

// Lines of one invocation come together, invocations in the order in which they began. With `follow` new
// lines come as they are written, until `stop` or `sink` says so, or the folder is gone. `folder`: of the
// function. Thread-safe.
absl::Status ReadLogs(const std::string& folder, const LogReadOptions& options, const LogLineSink& sink);

}  // namespace rekindle::functions
