// Processes that have been told to stop (SIGSTOP). All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include "base/deadline.h"

namespace rekindle {

// Does none of its threads run any more: all are stopped, traced and stopped, or ending? One that has gone
// does not.
bool StandsStill(pid_t pid);

// Until it does, or the deadline has passed. Before, it may have a child more: a fork that had begun when the
// signal came still succeeds. One that waits for a child which it has made with vfork() does not stop before
// that ends.
void AwaitStandstill(pid_t pid, const Deadline& deadline);

}  // namespace rekindle
