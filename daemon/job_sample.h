// What a job has used until now, as /proc tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "daemon/job_members.h"

namespace rekindle::daemon {

struct JobSample {
  double cpu_seconds = 0;
  uint64_t io_bytes = 0;  // read and written, by system calls
  // Somebody keeps one of its processes from running: a signal to stop, a debugger, a frozen cgroup.
  bool stopped = false;
  std::vector<pid_t> pids;
  std::vector<SeenProcess> processes;
};

// Of the process and its descendants that live.
JobSample SampleJob(pid_t root);

}  // namespace rekindle::daemon
