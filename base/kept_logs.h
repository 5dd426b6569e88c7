// Logs of what has failed, kept for a look back: folders of one kind beside one another, few enough not to
// fill /run.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace rekindle {

// Of one prefix.
constexpr size_t kMostKeptLogs = 8;

// The path "DIRECTORY/PREFIX<time>-<id>" for the logs of the work in the folder `work`, whose name ends in
// "-<id>": nothing is there yet. The oldest ones of `prefix` are removed to make room for it. Thread-safe.
std::string PlaceForLogs(const std::string& directory, absl::string_view prefix, absl::string_view work);

}  // namespace rekindle
