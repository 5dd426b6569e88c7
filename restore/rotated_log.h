// A log that its program has rotated: LOG is LOG.1 now, LOG.1 is LOG.2, and another file is LOG. What is to
// get which name again, so that the program finds its logs as they were.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// Within one folder. Nothing to be done: none was found.
struct RotatedNames {
  std::string log;                 // that of the log
  std::string name;                // that the log has now
  std::vector<std::string> newer;  // of files that were made since, the log's own among them
  std::vector<std::pair<std::string, std::string>> older;  // of those that were there: now, and then
  bool found() const { return !name.empty(); }
};

// Among the names in `folder` that begin with that of the log and a dot. `is_log` is asked about regular
// files. With the rights of the thread.
RotatedNames FindRotated(int folder, const std::string& log,
                         const std::function<bool(const std::string& name, const struct stat& info)>& is_log);

// Gives them back. What was made since gets names as of kept tails (TailName of `now`), which are added to
// `kept`. Replaces nothing. Whenever it is interrupted, the log is found again by what it is, and what was
// made since is kept. With the rights of the thread.
absl::Status RotateBack(int folder, const RotatedNames& names, absl::Time now,
                        std::vector<std::string>* kept);

}  // namespace rekindle::restore
