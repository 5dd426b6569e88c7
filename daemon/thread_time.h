// How much of a processor the calling thread has used.
#pragma once

#include <time.h>

namespace rekindle::daemon {

// In seconds, the kernel's work for it included; time in which it waited is not. Thread-safe.
inline double ThreadCpuSeconds() {
  timespec used = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace rekindle::daemon
