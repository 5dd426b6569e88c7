// What a daemon leaves beside its socket for those who come to it later: which store it has.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rekindle::daemon {

// The file whose lock the listener at this socket holds, and which outlives it.
std::string ListenerLockPath(const std::string& socket);

// In that file, which is open for writing.
absl::Status WriteListenerNote(int lock, const std::string& note, const std::string& socket);

// The note of the last one of this user that listened there since the machine started. Empty: there was none,
// or it left none.
std::string NoteOfListener(const std::string& socket);

}  // namespace rekindle::daemon
