// Where paths lie, by their text alone.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rekindle {

// Is `path` this folder, or below it? Slashes at the end of `folder` do not count.
inline bool IsBelow(absl::string_view path, absl::string_view folder) {
  while (absl::ConsumeSuffix(&folder, "/")) {
  }
  return absl::ConsumePrefix(&path, folder) && (path.empty() || path[0] == '/');
}

}  // namespace rekindle
