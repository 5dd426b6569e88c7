// TCP connections of a job that CRIU keeps as they are while it dumps: its sockets are in repair
// (TCP_REPAIR), in which they neither send nor receive, and a firewall's table drops the packets of their
// peers. CRIU undoes that when it lets go of the job, but not when it leaves it stopped (--leave-stopped is
// for a job that will not go on) and not when it is killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rekindle::criu {

// Undoes it for the sockets of `processes`, which are by then nobody's but their own, and for the table that
// the dump `run` left in their network namespaces: a UUID, by which it is called (CRIU_RUN in run_name.h). Ok
// as well where there is nothing to undo, or where the processes have ended. An error names what is left and
// how to undo it. Thread-safe.
absl::Status UnlockConnections(const std::string& run, const std::vector<pid_t>& processes);

// Of a job that was left stopped and was ended then, the table alone, if it is in our network namespace: no
// restore of it is to find its connections as they were. Ok where there is none. Thread-safe.
absl::Status RemoveConnectionLock(const std::string& run);

}  // namespace rekindle::criu
