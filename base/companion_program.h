// Programs of Rekindle's own that it starts, and libraries that it has CRIU load.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// The path of the program `name`: beside our own executable (a build folder), in ../libexec/rekindle (an
// installation) or in the relocatable bundle. A name that ends in ".so" is a library's, which need not be
// executable: Debian's CMake installs none so. NotFound. Thread-safe.
absl::StatusOr<std::string> FindCompanionProgram(absl::string_view name);

}  // namespace rekindle
