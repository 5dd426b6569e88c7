// Logs that Rekindle named itself, of jobs that named none: nobody else removes them, so old ones go.
#pragma once

#include <cstddef>
#include <cstdint>
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

struct LogBounds {
  absl::Duration age;  // zero: none
  uint64_t bytes = 0;  // of disk space, all together; 0: none
};

// Removes those in `folder` that were not written to for so long. While the others take more room than that
// together, the oldest of the user whose take the most go, none that was written to within a day; also what
// they were rotated to. None that a process has open, nor of which `is_needed`
// says that somebody may yet come back to it: these do not count either. Returns how many. Where the file
// system can't tell who has a file open, it stays. Thread-safe.
size_t RemoveOldLogs(const std::string& folder, const LogBounds& bounds,
                     const std::function<bool(const NamedLog&)>& is_needed);

}  // namespace rekindle::daemon
