#include "daemon/left_jobs.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/exit_of_others.h"
#include "daemon/job_reaper.h"
#include "daemon/job_registry.h"
#include "daemon/supervisor.h"

namespace rekindle::daemon {
namespace {

absl::Status Watch(Node& node, const JobRecord& job) {
  absl::StatusOr<UniqueFd> process = OpenProcess(job.pid);
  if (absl::IsNotFound(process.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(process.status());
  // Only now: what was opened is what has the number now.
  if (!JobRegistry::Lives(job)) return absl::OkStatus();
  ExpectExitOf(job.pid);
  auto unknown = std::make_shared<std::atomic<bool>>(false);
  return node.reaper()
      .Watch(
          *std::move(process),
          [pid = job.pid, unknown](int ended) { return ExitOfStranger(ended, pid, unknown.get()); },
          [&node, job, unknown](const ExitState& exit) {
            const absl::Status recorded =
                node.jobs().SetExit(job, unknown->load() ? std::nullopt : std::optional(exit));
            if (!recorded.ok()) Log(LogLevel::kWarning, recorded.message());
          })
      .status();
}

}  // namespace

void WatchLeftJobs(Node& node) {
  const absl::StatusOr<std::vector<JobRecord>> jobs = node.jobs().List();
  if (!jobs.ok()) return;
  for (const JobRecord& job : *jobs) {
    if (!JobRegistry::Lives(job) || node.supervisor().FindRunning(job.name, job.pid) != nullptr) continue;
    const absl::Status watched = Watch(node, job);
    if (!watched.ok())
      Log(LogLevel::kWarning,
          absl::StrCat("how job '", job.name, "' ends will not be known: ", watched.message()));
  }
}

}  // namespace rekindle::daemon
