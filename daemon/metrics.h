// What this node knows of itself, for Prometheus.
#pragma once

#include <string>

#include "daemon/node.h"

namespace rekindle::daemon {

// In the text format (version 0.0.4). Names begin with "rekindle_", units are seconds and bytes. What only
// grows ends in "_total" and is counted since the daemon started; of a supervised job since the job did, of
// the pager since that did. Made anew each time, of what the remote procedures tell an administrator: reads
// the store's catalog and /proc. What can't be told is left out. Thread-safe.
std::string MetricsText(Node& node);

}  // namespace rekindle::daemon
