// Texts of /proc whose length is up to the process that they are of: command lines, environments, maps. None
// of them is ever held whole.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// At most the first `most` bytes of the file; empty when it can't be read.
std::string BeginningOfFile(const std::string& path, size_t most);

// What a process had in its environment when its program began ("NAME=value", each with a NUL after it),
// unless it has written over that since. Empty: it has ended, or we may not read its memory.
std::string EnvironmentOf(pid_t pid);

// Calls `visit` with each line, without its end, until that returns false. None when it can't be read.
void ForEachLineOf(const std::string& path, absl::FunctionRef<bool(absl::string_view)> visit);

}  // namespace rekindle
