// A process's command line as a part of a message.
#pragma once

#include <sys/types.h>

#include <string>

namespace rekindle {

// As CommandLineOf, on one line, and of a long one the beginning, with "…" behind it. Thread-safe.
std::string ShownCommandOf(pid_t pid);

}  // namespace rekindle
