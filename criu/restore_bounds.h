// Of a job that isn't root's, what CRIU makes, removes and gives away by name it does with the rights of the
// job's user: see user_bounds.c.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"

namespace rekindle::criu {

// "K=V" for a CRIU that is to keep to what is in `bounds_file` when it is told what to restore; no such file:
// the job is root's. NotFound: the installation is not complete.
absl::StatusOr<std::vector<std::string>> BoundsVariables(const std::string& bounds_file);

absl::Status WriteBounds(const std::string& bounds_file, const Owner& user);

inline constexpr char kBoundsFile[] = "user-bounds";

}  // namespace rekindle::criu
