// Logs that Rekindle named itself, of jobs that named none: nobody else removes them, so old ones go.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// A file in the folder of such logs: whose it is.
struct NamedLog {
  std::string job;
  std::string log;  // "JOB-YYYYMMDD-HHMMSS.log" or "…-2.log": the file, or what it was rotated or copied from
};
// Nothing: it is no such log.
std::optional<NamedLog> NamedLogOf(absl::string_view file);

// Removes those in `folder` that were not written to for `age`, that no process has open, and of which
// `is_needed` says that nobody may yet come back to them; also what they were rotated to. Returns how many.
// Where the file system can't tell who has a file open, it stays. Thread-safe.
size_t RemoveOldLogs(const std::string& folder, absl::Duration age,
                     const std::function<bool(const NamedLog&)>& is_needed);

}  // namespace rekindle::daemon
