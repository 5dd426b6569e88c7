// Whether a user may have what a process has in its memory and open, as the kernel decides it for ptrace(2)
// and pidfd_getfd(2). For a service that does these things as root for others.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"

namespace rekindle {

// Each of its threads has the user's IDs alone, one of his groups, no capabilities beyond them, and its
// memory is its user's (prctl(2), PR_SET_DUMPABLE): not that of a set-uid program, nor of one that has given
// up what it was. PermissionDenied says what it is instead, in words that follow the process's name;
// NotFound: it is gone. What the process executes next may be another matter: ask again while it stands
// still, or see ProgramOf.
absl::Status CheckMayTrace(pid_t pid, const Owner& user);

// Another text after each execve(2) of the process, wherever it leads. For those who can look into its
// /proc/PID/stat.
absl::StatusOr<std::string> ProgramOf(pid_t pid);

}  // namespace rekindle
