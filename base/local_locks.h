// Locks of a network file system that hold on one machine alone.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rekindle {

// The mount option by which flock() on `path`, which exists, keeps out nobody on other machines; empty where
// there is none, or where no other machine can have the file.
std::string LocalLocksOption(const std::string& path);
// The same, of the contents of /proc/self/mountinfo; `device` is "MAJOR:MINOR" of the file.
std::string LocalLocksOptionIn(absl::string_view mountinfo, absl::string_view device);

}  // namespace rekindle
