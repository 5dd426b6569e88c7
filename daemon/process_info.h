// What /proc says of a process and its descendants, as far as listing jobs needs it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process_stat.h"

namespace rekindle::daemon {

struct ProcessInfo {
  pid_t parent = 0;
  uint64_t start_ticks = 0;  // since boot: with the PID it names one process
  uid_t uid = 0;
};

// NotFound when there is no such process.
absl::StatusOr<ProcessInfo> ReadProcessInfo(pid_t pid);

// The regular file that its standard output goes to, as the process has its path; empty: it goes elsewhere.
std::string OutputFileOf(pid_t pid);

struct TreeUse {
  uint32_t processes = 0;
  uint64_t resident_bytes = 0;
};

// The process and all its descendants. Zeros when it has gone.
TreeUse MeasureTree(pid_t root, const ProcessChildren& all = ProcessChildren());

// Those of this machine, as they were within the last `age`: for who measures many, or often, since each look
// goes through all of /proc. Thread-safe.
std::shared_ptr<const ProcessChildren> RecentChildren(absl::Duration age);

}  // namespace rekindle::daemon
