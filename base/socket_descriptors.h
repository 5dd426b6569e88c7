// The sockets that a process has, by what /proc tells of its descriptors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// Of what a descriptor's link in /proc leads to: "socket:[4711]". Nothing: it is no socket.
std::optional<uint64_t> SocketInode(absl::string_view target);

// `found(descriptor, inode)` for each socket that it has, in no order, until that returns false. Of a process
// that has ended meanwhile, or that may not be looked at: of none, or some. Thread-safe.
void ForEachSocketOf(pid_t pid, absl::FunctionRef<bool(int descriptor, uint64_t inode)> found);

}  // namespace rekindle
