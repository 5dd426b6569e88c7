// Jobs that an earlier daemon, or a command without one, has left running.
#pragma once

#include "daemon/node.h"

namespace rekindle::daemon {

// From now on how they end is recorded, as far as the kernel tells it of what is no child of ours. Supervised
// ones are their supervisor's.
void WatchLeftJobs(Node& node);

}  // namespace rekindle::daemon
