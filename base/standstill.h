// Processes that have been told to stop (SIGSTOP). All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "base/deadline.h"

namespace rekindle {

// Does none of its threads run any more: all are stopped, traced and stopped, or ending? One that has gone
// does not.
bool StandsStill(pid_t pid);

// Until it does, or the deadline has passed. Before, it may have a child more: a fork that had begun when the
// signal came still succeeds. One that waits for a child which it has made with vfork() does not stop before
// that ends.
void AwaitStandstill(pid_t pid, const Deadline& deadline);

// Stops a set of processes that grows by what they fork. `stop_new` looks who belongs to it now, sends
// SIGSTOP to whom it has not met before, and returns those; when they stand still it is called again. Who
// stands still forks no more, so the look that finds nobody new is the last. Waits no longer than 2 s in all,
// more than a busy machine takes.
void StopWhileNewOnesCome(const std::function<std::vector<pid_t>()>& stop_new);

}  // namespace rekindle
