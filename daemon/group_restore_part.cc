// A member's side of a group's restore: its job stands ready until all do, and is kept when all run.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "criu/process_tree.h"
#include "daemon/group_member.h"
#include "daemon/group_point.h"
#include "daemon/groups.h"
#include "daemon/job_log.h"
#include "daemon/request_check.h"
#include "daemon/rpcs.h"

namespace rekindle::daemon {
namespace {

// A coordinator that has not said for so long that it lives hangs.
constexpr absl::Duration kMostSilence = absl::Seconds(30);
// Of one that says nothing of the kind, as of an older version.
constexpr absl::Duration kMostSilenceOfOlder = absl::InfiniteDuration();

// Waits for the others as long as the coordinator lives: how large their images are, and how much of them
// goes back to devices once they may run, is not known here.
class RestoredPart {
 public:
  RestoredPart(const v1::RestorePartBegin& request, const RestorePartCaller& coordinator)
      : name_(absl::StrCat("member ", request.member(), ", image ", request.restore().image())),
        most_silence_(request.coordinator_says_it_lives() ? kMostSilence : kMostSilenceOfOlder),
        coordinator_(coordinator) {}

  void Listen() {
    v1::RestorePartRequest request;
    while (coordinator_.read(&request)) {
      absl::MutexLock lock(&mutex_);
      if (silent_) continue;  // too late
      ++heard_;
      go_ = go_ || request.has_go();
      keep_ = keep_ || (go_ && request.has_keep());
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  absl::Status BeforeRunning() {
    v1::RestorePartEvent event;
    event.mutable_ready();
    PassGroupPoint(group_point::kMemberReady);
    coordinator_.write(event);
    return Await(&go_);
  }
  absl::Status AwaitKeep() { return Await(&keep_); }
  // Whoever carries out the restore may only have seen that it is cancelled.
  absl::Status Why(const absl::Status& failed) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return why_.ok() ? failed : why_;
  }

  bool gives_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return (ended_ || silent_) && !keep_;
  }
  void AwaitEnd(absl::Duration limit) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(&ended_), Deadline(limit));
  }

 private:
  absl::Status Await(const bool* said) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (;;) {
      const uint64_t heard = heard_;
      const auto known = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return *said || ended_ || heard_ != heard;
      };
      const bool silent = !AwaitUntil(mutex_, absl::Condition(&known), Deadline(most_silence_));
      if (*said) return absl::OkStatus();
      if (ended_) {
        return why_ = absl::AbortedError(absl::StrCat(
                   name_,
                   ": its coordinator gave the group up or can't be reached; nothing of it is left running"));
      }
      if (!silent) continue;
      // If it is this process that stood still, what has come meanwhile is not read yet.
      if (AwaitUntil(mutex_, absl::Condition(&known), Deadline(2 * kCoordinatorSaysItLives))) continue;
      silent_ = true;
      return why_ = absl::AbortedError(absl::StrCat(
                 name_, ": its coordinator has said nothing for ", absl::FormatDuration(most_silence_),
                 ", so that its daemon, or its machine, hangs; nothing of it is left running. Restore "
                 "the group again once 'rekindle group ls' answers there"));
    }
  }

  const std::string name_;
  const absl::Duration most_silence_;
  const RestorePartCaller& coordinator_;
  mutable absl::Mutex mutex_;
  bool go_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t heard_ ABSL_GUARDED_BY(mutex_) = 0;   // so many requests
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;  // for too long
  absl::Status why_ ABSL_GUARDED_BY(mutex_);     // it is given up
};

// That other processes write to what this member's job had cut off. Its group's other members on this node
// have gone back as well: they were restored since the group's restore `began`, and all of them run.
// `caller`: the coordinator, if it is on this node.
void WarnOfCut(Node& node, const v1::FilesRolledBack& files, int64_t began_unix_ns, pid_t caller,
               v1::JobStarted* started) {
  if (files.files_size() == 0) return;
  const ProcessChildren now;
  std::vector<pid_t> members = now.Tree(started->job().pid());
  for (const JobRecord& job : node.jobs().List().value_or(std::vector<JobRecord>())) {
    if (job.exit || job.image.empty() || job.started_unix_ns < began_unix_ns) continue;
    for (const pid_t pid : now.Tree(job.pid)) members.push_back(pid);
  }
  for (auto& [file, warning] : WarnOfOthersCut(files.files(), std::move(members), caller))
    started->add_warnings(std::move(warning));
}

}  // namespace

void Groups::EndForsakenJobs() {
  const absl::StatusOr<std::vector<JobRecord>> jobs = node_.jobs().List();
  if (!jobs.ok()) return Log(LogLevel::kError, jobs.status().message());
  for (const JobRecord& job : *jobs) {
    if (!JobRegistry::IsForsaken(job)) continue;
    Log(LogLevel::kWarning,
        absl::StrCat("job '", job.name, "', PID ", job.pid,
                     ", is ended: an earlier daemon restored it as a member of a group, and "
                     "ended before it heard that all members run"));
    criu::KillTree(job.pid, /*reap_root=*/false);
  }
}

void Groups::NoteKept(const JobRecord& job) {
  const absl::Status noted = node_.jobs().SetKept(job);
  if (noted.ok() || absl::IsNotFound(noted)) return;
  Log(LogLevel::kWarning,
      absl::StrCat("noting that job '", job.name,
                   "' is kept, without which the next daemon ends it, is tried again: ", noted.message()));
  absl::MutexLock lock(&mutex_);
  kept_.push_back(job);
}

absl::Status Groups::RestorePart(const Call& call, const RestorePartCaller& coordinator) {
  RK_RETURN_IF_ERROR(MayUse(call));
  v1::RestorePartRequest first;
  if (!coordinator.read(&first)) return absl::CancelledError("the coordinator has gone");
  RK_RETURN_IF_ERROR(CheckRequest(first));
  if (!first.has_restore() || first.restore().restore().has_clone()) {
    return absl::InvalidArgumentError("a group's member is told first what to restore, and makes no clones");
  }
  RestoredPart part(first.restore(), coordinator);
  const PartListener listener(part, coordinator);

  PartOfGroup of_group;
  of_group.before_running = [&part] { return part.BeforeRunning(); };
  Call inner = call;
  inner.part = &of_group;
  inner.cancelled = [&part] { return part.gives_up(); };
  v1::RestoreRequest request = first.restore().restore();
  request.set_detach(true);
  const int64_t began_unix_ns = UnixNanos();
  std::optional<v1::JobStarted> started;
  v1::FilesRolledBack files;
  absl::Status restored = Restore(node_, inner, request, [&](const v1::JobEvent& event) {
    if (event.has_started()) started = event.started();
    if (event.has_rolled_back()) {
      files = event.rolled_back();
      v1::RestorePartEvent rolled_back;
      *rolled_back.mutable_rolled_back() = event.rolled_back();
      coordinator.write(rolled_back);
    }
    return true;
  });
  if (restored.ok() && !started) restored = absl::InternalError("the restore ended without a job");
  if (!restored.ok()) {
    restored = part.Why(restored);
    Log(LogLevel::kWarning, restored.message());  // the coordinator may not hear it
    SendFailure(coordinator, restored);
    return absl::OkStatus();
  }
  PassGroupPoint(group_point::kMemberRuns);
  v1::RestorePartEvent running;
  *running.mutable_running() = *started;
  coordinator.write(running);
  absl::Status keep = part.AwaitKeep();
  if (!keep.ok()) {
    // Unless it has ended by itself, and its number is another's.
    const pid_t root = started->job().pid();
    if (criu::StartTicks(root) == started->process().start_ticks())
      criu::KillTree(root, /*reap_root=*/false);  // the reaper has it
    Log(LogLevel::kWarning, keep.message());
    SendFailure(coordinator, keep);
    return absl::OkStatus();
  }
  if (const std::optional<JobRecord> job = node_.jobs().FindRunning(started->job().pid())) NoteKept(*job);
  if (WarnOfCut(node_, files, began_unix_ns, call.caller.pid, &*started);
      started->warnings_size() > running.running().warnings_size()) {
    *running.mutable_running() = *started;
    coordinator.write(running);
  }
  PassGroupPoint(group_point::kMemberKept);
  v1::RestorePartEvent kept;
  kept.mutable_kept();
  coordinator.write(kept);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
