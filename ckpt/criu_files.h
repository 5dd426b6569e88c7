// CRIU's small image files, by name, as they are on their way into an image.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace rekindle::ckpt {

// Of the file with this name, as long as that is there; empty: there is none.
inline absl::string_view ContentOf(const std::map<std::string, std::string>& criu_files,
                                   const std::string& name) {
  const auto file = criu_files.find(name);
  return file == criu_files.end() ? absl::string_view() : absl::string_view(file->second);
}

}  // namespace rekindle::ckpt
