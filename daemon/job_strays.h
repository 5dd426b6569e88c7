// Processes of a job that its image lacks: an image is of a tree, and who has lost its parent, as daemons do
// on purpose, is in none. They are known as the job's all the same (job_members.h), and end with it.
#pragma once

#include <map>
#include <string>

#include "daemon/job_members.h"

namespace rekindle::daemon {

// By PID: start time and command line.
using Strays = std::map<pid_t, std::pair<uint64_t, std::string>>;

// Those that are there now, and were when `processes` were read.
Strays FindStrays(const JobTraits& job, pid_t root, const ProcessTable& processes = ProcessTable());

// Those that are in both: processes that were only just orphaned and about to end are in one.
Strays InBoth(const Strays& before, const Strays& after);

// For the job's owner. `ended`: what becomes of them when it dies.
std::string DescribeStrays(const Strays& strays, bool are_ended_with_it);

}  // namespace rekindle::daemon
