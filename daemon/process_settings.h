// What a command has of whoever starts it and the job of a service would have of the service: file mode mask,
// resource limits, priority, processors, how soon the kernel ends it for want of memory.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/caller.h"
#include "rekindle/v1/supervised_job.pb.h"

namespace rekindle::daemon {

struct ProcessSettings {
  mode_t file_mode_mask = 0;
  std::vector<std::pair<int, rlimit>> limits;  // by RLIMIT_…
  int nice = 0;
  int policy = 0, priority = 0;      // as of sched_setscheduler(2)
  std::vector<char> affinity_mask;   // as of sched_setaffinity(2); empty: whatever there is
  std::optional<int> oom_score_adj;  // as base/oom_score.h; nothing: it is not known
};

// Of a process that stays what it is meanwhile. A child of it has the same.
absl::StatusOr<ProcessSettings> ReadProcessSettings(pid_t pid);
// Of the process that calls; of the one that hosts the service, as it was started. Cancelled: it has gone.
// Nothing, and `why` says why, where it is not to be seen from here.
absl::StatusOr<std::optional<ProcessSettings>> SettingsOfCaller(const Caller& caller, std::string* why);

v1::ProcessSettings ToProto(const ProcessSettings& settings);
// What this machine does not know is passed over.
ProcessSettings FromProto(const v1::ProcessSettings& settings);

// What a process could not take on.
struct RefusedSetting {
  enum class What : int { kLimit, kNice, kPolicy, kAffinity };
  What what;
  int limit;  // RLIMIT_…
  int error;
};
constexpr size_t kMostRefused = 32;

// For a child between fork and exec, while it is root still; all but the mask and oom_score_adj. A limit that
// it may not have is as high as it can be. Returns how many were refused. Async-signal-safe.
size_t TakeOnSettings(const ProcessSettings& settings, std::array<RefusedSetting, kMostRefused>* refused);

// For people, of a job that a child of this process has become.
std::string DescribeRefused(const RefusedSetting& refused, const ProcessSettings& settings);

}  // namespace rekindle::daemon
