// Programs of Rekindle's own that it starts.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// The path of the program `name`: beside our own executable (a build folder), in ../libexec/rekindle (an
// installation) or in the relocatable bundle. NotFound. Thread-safe.
absl::StatusOr<std::string> FindCompanionProgram(absl::string_view name);

}  // namespace rekindle
