// The processes that belong to a job that was started as a session of its own, also when its first process
// has died: those of its session, those that carry its mark in their environment, and their descendants. What
// left the session and cleaned its environment and whose parents are all gone is not found.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// `mark`: "NAME=VALUE" of an environment variable that no other job has. `session`: the PID of its first
// process, if that number can't be somebody else's by now; else 0. Zombies left out.
std::vector<pid_t> JobMembers(pid_t session, absl::string_view mark);

// Has one of the descendants of `root` been killed by a signal without its parent having seen it yet? Then
// the job is likely to be in the middle of its end.
bool HasKilledChild(pid_t root);

// Sends each of them SIGKILL, and returns descriptors of them.
std::vector<UniqueFd> SendKillToJobMembers(pid_t session, absl::string_view mark);

// Kills them, and what they start meanwhile, and waits until they have gone (zombies whose parents do not
// reap them count as gone). Returns how many were killed.
size_t KillJobMembers(pid_t session, absl::string_view mark);

}  // namespace rekindle::daemon
