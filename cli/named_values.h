// What arguments of several commands look like: NAME=VALUE, and the PID or the name of a job.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::cli {

// Name and value; only the value may be empty, or have a '=' in it. InvalidArgument names the `option` that
// has it, and its `form`.
absl::StatusOr<std::pair<std::string, std::string>> ParseAssignment(absl::string_view option,
                                                                    const std::string& text,
                                                                    absl::string_view form = "NAME=VALUE");

// Digits alone are a PID: no job has such a name.
struct JobName {
  int pid = 0;       // 0: it is named
  std::string name;  // empty: it has the PID
};
absl::StatusOr<JobName> ParseJobName(const std::string& text);

}  // namespace rekindle::cli
