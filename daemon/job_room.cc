#include "daemon/job_room.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/job_registry.h"
#include "daemon/node.h"
#include "daemon/supervisor.h"

namespace rekindle::daemon {

std::vector<std::shared_ptr<void>> JobsBeingStarted::Begin(uid_t user, size_t count, size_t* all) {
  std::vector<std::shared_ptr<void>> rooms(count);
  absl::MutexLock lock(&mutex_);
  *all = of_each_[user] += count;
  for (std::shared_ptr<void>& room : rooms) {
    room = std::shared_ptr<void>(this, [jobs = shared_from_this(), user](void*) {
      absl::MutexLock ending(&jobs->mutex_);
      const auto of = jobs->of_each_.find(user);
      if (--of->second == 0) jobs->of_each_.erase(of);
    });
  }
  return rooms;
}

absl::StatusOr<std::shared_ptr<void>> TakeRoomForJob(Node& node, const Caller& caller) {
  RK_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<void>> rooms, TakeRoomForJobs(node, caller, 1));
  return std::move(rooms[0]);
}

absl::StatusOr<std::vector<std::shared_ptr<void>>> TakeRoomForJobs(Node& node, const Caller& caller,
                                                                   size_t count) {
  const size_t most = node.options().jobs_of_one;
  if (most == 0 || node.policy().IsAdmin(caller)) return std::vector<std::shared_ptr<void>>(count);
  // Before those that run are counted: one that is started meanwhile counts here or there.
  size_t starting = 0;
  std::vector<std::shared_ptr<void>> rooms = node.jobs_being_started().Begin(caller.uid, count, &starting);
  RK_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs, node.jobs().List());
  std::set<std::string> have = node.supervisor().NamesOf(caller.uid);
  for (const JobRecord& job : jobs) {
    if (job.owner == caller.uid && !have.contains(job.name) && JobRegistry::Lives(job)) have.insert(job.name);
  }
  if (have.size() + starting <= most) return rooms;
  return absl::ResourceExhaustedError(absl::StrCat(
      "uid ", caller.uid, " has ", have.size(), " jobs, ", starting - count, " more are being started, and ",
      count, count == 1 ? " is" : " are", " wanted: one user may have ", most,
      ". End some (`rekindle ps` lists them, `rekindle stop NAME` ends one), or have an administrator allow "
      "more "
      "(rekindled --jobs-of-one)"));
}

}  // namespace rekindle::daemon
