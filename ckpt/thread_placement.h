// What CRIU does not keep of how threads are scheduled: on which processors they run, where that was chosen
// (sched_setaffinity, taskset, numactl, a pinned OpenMP), their I/O priority (ionice) and timer slack.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// Of all threads of these processes that may not run on all of the machine's processors, by those that they
// may run on. `number`: a thread's number in the image. What has ended, or can't be looked at, is left out.
std::vector<v1::ThreadPlacement> LookAtPlacements(const std::vector<pid_t>& pids,
                                                  const std::function<pid_t(pid_t)>& number);

// Likewise of threads whose I/O priority or timer slack is not the usual one.
std::vector<v1::ThreadManners> LookAtManners(const std::vector<pid_t>& pids,
                                             const std::function<pid_t(pid_t)>& number);

}  // namespace rekindle::ckpt
