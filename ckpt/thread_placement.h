// On which processors the threads of a job run, where that was chosen (sched_setaffinity, taskset, numactl, a
// pinned OpenMP). CRIU does not keep it.
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

}  // namespace rekindle::ckpt
