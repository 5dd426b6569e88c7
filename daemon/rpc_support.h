// What several remote procedures do the same way.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/call.h"
#include "daemon/job_reaper.h"
#include "daemon/node.h"
#include "dedup_store/store.h"
#include "rekindle/v1/rekindle.pb.h"
#include "restore/cgroup_membership.h"

namespace rekindle::daemon {

// FailedPrecondition: the caller lives in another PID namespace (a container with the daemon's socket, or the
// machine where the daemon is in one), so that what is `pid` to him is another process to us.
absl::Status CheckMeansOurs(const Caller& caller, pid_t pid);

// The running job that a request names, by PID or by its name: one of them. A process that is no job of ours
// has a record of its PID and owner alone. FailedPrecondition: as CheckMeansOurs.
// A supervised job that has no process now is FailedPrecondition, since it gets one again, and NotFound where
// its supervisor itself asks.
absl::StatusOr<JobRecord> FindTarget(Node& node, const Caller& caller, pid_t pid, const std::string& name,
                                     bool of_supervisor = false);

// How a job that has ended did. Waits a little for whoever is its parent to record that. Nothing: nobody saw
// it.
std::optional<ExitState> RecordedExit(Node& node, const JobRecord& job);

// Is it another job, which got the name of a supervised one that has ended: by a restore of one of its
// images?
bool HasTakenName(const JobRecord& record, const v1::Job& ended);

// InvalidArgument: one of these labels, which a caller wants with his image, is Rekindle's own word about it:
// groups, supervisors and copies go by them.
absl::Status CheckLabelsOfCaller(const google::protobuf::Map<std::string, std::string>& labels);
// InvalidArgument: an image that a caller wants to have this name would be taken for one that the daemon has
// made for functions, and replaced by the next one that it makes. `reference`: normalized.
absl::Status CheckNoNameOfFunctions(absl::string_view reference);
// InvalidArgument: there is the one by which copies of an image are put together. Whoever could set it could
// have other images' pages in them.
absl::Status CheckNoOriginLabel(const google::protobuf::Map<std::string, std::string>& labels);

// For clients on this machine that stay with the job when the daemon goes; nothing where the job goes with
// us.
void SetIdentity(const Node& node, const JobRecord& record, v1::JobStarted* started);

// A job of ours that is recorded, and the reaper's.
struct RegisteredJob {
  JobRecord record;
  std::shared_ptr<const JobEnd> end;
};

// Waits until all these jobs have ended, and sends of each how it did, when it does. Leaves early, those that
// run running on, when the client has gone (OK) or the daemon is about to (Unavailable).
absl::Status SendJobEnds(const Node& node, const Call& call, absl::Span<const RegisteredJob> jobs,
                         const EventSink<v1::JobEvent>& send);

// A job that was recorded before it runs.
struct NotedJob {
  JobRecord record;
  std::optional<JobRecord> before;  // the ended one whose name it has: see JobRegistry::Forget
};

// Records a job before it runs, so that whoever comes after this process finds it.
absl::StatusOr<NotedJob> NoteJob(Node& node, JobRecord record, bool unique_name);
// Hands one that was noted to the reaper, and keeps its record up to date.
absl::StatusOr<RegisteredJob> FollowJob(Node& node, JobRecord noted);
// A job that is not our child: see JobReaper::Watch.
absl::StatusOr<RegisteredJob> RegisterJob(Node& node, JobRecord record, bool unique_name, UniqueFd ended,
                                          std::function<ExitState(int ended)> how);

// A log that was made for a job. Where nothing comes of the job, it goes again, unless something is in it.
class NewLog {
 public:
  NewLog() = default;
  explicit NewLog(std::string path) : path_(std::move(path)) {}
  NewLog(NewLog&& other) noexcept : path_(std::exchange(other.path_, std::string())) {}
  NewLog& operator=(NewLog&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~NewLog();
  // The job is there.
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

// A new log file under the default log folder, named after the job and the time, which the caller may read
// and write.
struct JobLog {
  std::string path;
  UniqueFd file;
  NewLog made;
};
absl::StatusOr<JobLog> MakeDefaultLog(const Node& node, const Caller& caller, absl::string_view job_name);

// Copies of these descriptors of the caller's. They come from the very process that connected: its pidfd
// names it; and not from a set-uid program that has taken its place. Errors end with `cure`.
absl::StatusOr<std::vector<UniqueFd>> TakeDescriptors(const Caller& caller, absl::Span<const int> numbers,
                                                      absl::string_view cure);
// InvalidArgument: the descriptors that the caller gives to a job are neither none nor three.
absl::Status CheckStdio(const v1::RestoreRequest& request);
// These three.
absl::StatusOr<std::vector<UniqueFd>> TakeStdio(const Caller& caller, const v1::RestoreRequest& request);
// Descriptors 0, 1 and 2 of the process `pid`, shared with it. NotFound: it has ended, or has none of that
// number.
absl::StatusOr<std::vector<UniqueFd>> StdioOf(pid_t pid);

// Where a job of this caller belongs: in the caller's cgroups, and so under its limits, while the caller
// waits for it; in ours when it is detached, or when the caller is elsewhere.
absl::StatusOr<restore::CgroupMembership> CgroupsForJob(const Caller& caller, bool detached);

absl::Status CheckAbsolute(absl::string_view path, absl::string_view what);

}  // namespace rekindle::daemon
