// How resource limits are called.
#pragma once

#include <sys/resource.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace rekindle {

struct KnownLimit {
  int number;
  const char* name;    // in /proc/PID/limits
  const char* option;  // of ulimit
};

inline constexpr KnownLimit kKnownLimits[] = {
    {RLIMIT_CPU, "cpu time", "-t"},
    {RLIMIT_FSIZE, "file size", "-f"},
    {RLIMIT_DATA, "data size", "-d"},
    {RLIMIT_STACK, "stack size", "-s"},
    {RLIMIT_CORE, "core file size", "-c"},
    {RLIMIT_RSS, "resident set", "-m"},
    {RLIMIT_NPROC, "processes", "-u"},
    {RLIMIT_NOFILE, "open files", "-n"},
    {RLIMIT_MEMLOCK, "locked memory", "-l"},
    {RLIMIT_AS, "address space", "-v"},
    {RLIMIT_LOCKS, "file locks", "-x"},
    {RLIMIT_SIGPENDING, "pending signals", "-i"},
    {RLIMIT_MSGQUEUE, "msgqueue size", "-q"},
    {RLIMIT_NICE, "nice priority", "-e"},
    {RLIMIT_RTPRIO, "realtime priority", "-r"},
    {RLIMIT_RTTIME, "realtime timeout", "-R"},
};

inline std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit);
}

}  // namespace rekindle
