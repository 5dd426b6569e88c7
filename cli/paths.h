// Paths as the user gives them.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace rekindle::cli {

// Seen from the caller's folder; an empty one, which was not given, stays so.
inline std::string Absolute(const std::string& path, const std::string& working_directory) {
  if (path.empty() || path[0] == '/') return path;
  return absl::StrCat(working_directory, "/", path);
}

}  // namespace rekindle::cli
