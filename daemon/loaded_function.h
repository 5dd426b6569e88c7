// A function that has just been loaded, and stands at its second ready point: may an image be taken of it?
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rekindle::daemon {

// A connection that one of the processes has, or is making, to others than themselves: "127.0.0.1:5432".
// Nothing: there is none, or none can be seen. Of Unix sockets only streams count: CRIU connects datagram
// sockets again. Thread-safe.
std::optional<std::string> ConnectionToOthers(const std::vector<pid_t>& processes);

// FailedPrecondition: copies would not have something that it has, more files in its /tmp than an image has
// room for, or a connection, where nothing is called in each copy (`has_after_restore`) to make it anew;
// names the cure. Thread-safe.
absl::Status CheckLoadedFunction(pid_t root, bool has_after_restore);

}  // namespace rekindle::daemon
