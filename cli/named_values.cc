#include "cli/named_values.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rekindle::cli {

absl::StatusOr<std::pair<std::string, std::string>> ParseAssignment(absl::string_view option,
                                                                    const std::string& text,
                                                                    absl::string_view form) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return absl::InvalidArgumentError(absl::StrCat(option, " '", text, "': write ", form));
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

absl::StatusOr<JobName> ParseJobName(const std::string& text) {
  JobName job;
  if (text.find_first_not_of("0123456789") != std::string::npos) {
    job.name = text;
  } else if (!absl::SimpleAtoi(text, &job.pid) || job.pid <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no PID and no name of a job"));
  }
  return job;
}

}  // namespace rekindle::cli
