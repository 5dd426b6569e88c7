#include "gpu_state/gpu_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::gpu {
namespace {

// Beyond a lock's own time-out: for the driver to give up.
constexpr absl::Duration kGrace = absl::Seconds(15);
constexpr int kAttempts = 2;

// Both things that went wrong, the first with its code.
absl::Status Both(const absl::Status& first, const absl::Status& second) {
  if (second.ok()) return first;
  return absl::Status(first.code(), absl::StrCat(first.message(), "; and ", second.message()));
}

bool IsGone(pid_t pid) {
  auto stat = ReadProcessStat(pid);
  return stat.ok() ? stat->ending() : absl::IsNotFound(stat.status());
}

}  // namespace

GpuSession::GpuSession(DriverClient& driver, std::vector<pid_t> pids, SessionOptions options)
    : driver_(driver), pids_(std::move(pids)), options_(options) {}

bool GpuSession::all_in(ProcessState state) const {
  return std::all_of(members_.begin(), members_.end(), [state](const Member& m) { return m.now == state; });
}

std::vector<pid_t> GpuSession::RunningAtBegin() const {
  std::vector<pid_t> pids;
  for (const Member& member : members_) {
    if (member.before == ProcessState::kRunning) pids.push_back(member.pid);
  }
  return pids;
}

absl::Status GpuSession::AskStates() {
  std::vector<pid_t> pids;
  for (const Member& member : members_) pids.push_back(member.pid);
  auto states = driver_.States(pids, options_.query_timeout);
  absl::Status first;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (states[i].ok()) {
      members_[i].now = *states[i];
    } else {
      members_[i].gone = IsGone(members_[i].pid);
      first.Update(members_[i].gone
                       ? absl::NotFoundError(absl::StrCat("process ", members_[i].pid, " has ended"))
                       : states[i].status());
    }
  }
  return first;
}

absl::Status GpuSession::Begin(Locked locked) {
  members_.clear();
  for (pid_t pid : pids_) members_.push_back({pid, {}, {}, false});
  RK_RETURN_IF_ERROR(AskStates());
  for (Member& member : members_) {
    member.before = member.now;
    if (member.now == ProcessState::kLocked && locked == Locked::kByOthers) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", member.pid,
                       ": its CUDA calls are locked by another tool; unlock them first "
                       "(`cuda-checkpoint --action unlock --pid ",
                       member.pid, "`)"));
    }
    if (member.now == ProcessState::kFailed) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", member.pid,
                       ": the driver says that its GPU state is lost (failed); only a new start helps"));
    }
  }
  return absl::OkStatus();
}

template <typename Chosen>
absl::Status GpuSession::ActOn(Action action, Chosen chosen, const ActOptions& options) {
  std::vector<pid_t> pids;
  std::vector<Member*> members;
  for (Member& member : members_) {
    if (member.gone || !StateAfter(member.now, action) || !chosen(member)) continue;
    pids.push_back(member.pid);
    members.push_back(&member);
  }
  if (pids.empty()) return absl::OkStatus();
  const absl::Duration timeout = action == Action::kLock     ? options.lock_timeout + kGrace
                                 : action == Action::kUnlock ? options_.query_timeout
                                                             : options_.move_timeout;
  std::vector<absl::Status> results = driver_.Act(action, pids, options, timeout);
  absl::Status first;
  bool unsure = false;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) {
      members[i]->now = *StateAfter(members[i]->now, action);
      continue;
    }
    members[i]->gone = IsGone(members[i]->pid);
    if (members[i]->gone) {
      first.Update(absl::AbortedError(absl::StrCat("process ", pids[i], " died")));
      continue;
    }
    // What a lock's time-out leaves behind is known; nothing else is.
    unsure |= !(action == Action::kLock && absl::IsDeadlineExceeded(results[i]));
    first.Update(Annotate(results[i], absl::StrCat(NameOf(action), " of process ", pids[i])));
  }
  if (unsure) {
    absl::Status asked = AskStates();
    if (!asked.ok() && !absl::IsNotFound(asked)) first = Both(first, asked);
  }
  return first;
}

template <typename Chosen>
absl::Status GpuSession::BringUp(Chosen chosen) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = ActOn(Action::kRestore, chosen);
    status.Update(ActOn(Action::kUnlock, chosen));
    if (status.ok()) break;
  }
  std::vector<std::string> left;
  for (const Member& member : members_) {
    if (member.gone || !chosen(member) || member.now == ProcessState::kRunning) continue;
    left.push_back(absl::StrCat("process ", member.pid, " is left ", NameOf(member.now)));
  }
  if (left.empty()) return absl::OkStatus();
  return Annotate(status,
                  absl::StrCat(absl::StrJoin(left, ", "),
                               "; `rekindle gpu resume` tries again, and `rekindle gpu ps` lists it"));
}

absl::Status GpuSession::PutBack() {
  return BringUp([](const Member& member) { return member.before == ProcessState::kRunning; });
}

absl::Status GpuSession::MoveToHost() {
  ActOptions lock;
  lock.lock_timeout = options_.lock_timeout;
  auto all = [](const Member&) { return true; };
  absl::Status status = ActOn(Action::kLock, all, lock);
  if (absl::IsDeadlineExceeded(status)) {
    status = absl::DeadlineExceededError(absl::StrCat(
        status.message(), ": work on the GPU did not end within ",
        absl::FormatDuration(options_.lock_timeout), "; try again, or with a longer --gpu-lock-timeout"));
  }
  if (status.ok()) status = ActOn(Action::kCheckpoint, all);
  if (status.ok() && !all_in(ProcessState::kCheckpointed)) {
    status = absl::InternalError("the NVIDIA driver reported success and did not move all processes");
  }
  if (status.ok()) return status;
  if (absl::IsUnimplemented(status)) {
    status = absl::UnimplementedError(absl::StrCat(
        status.message(),
        " (the driver's checkpoints do not cover managed (unified) memory before driver 595, CUDA IPC "
        "memory before 610, MIG, or graphics interop)"));
  }
  return Both(status, PutBack());
}

absl::Status GpuSession::MoveToDevice(const std::vector<std::pair<std::string, std::string>>& pairs) {
  ActOptions restore;
  restore.pairs = pairs;
  auto all = [](const Member&) { return true; };
  absl::Status status = ActOn(Action::kRestore, all, restore);
  if (!status.ok()) {
    // Those that are on the device again must not run without the others, nor fill it.
    return Both(status, ActOn(Action::kCheckpoint, all));
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = ActOn(Action::kUnlock, all);
    if (status.ok()) break;
  }
  RK_RETURN_IF_ERROR(status);
  RK_RETURN_IF_ERROR(AskStates());
  for (const Member& member : members_) {
    if (member.now == ProcessState::kRunning) continue;
    return absl::InternalError(absl::StrCat("process ", member.pid,
                                            ": the driver reported success, but the process is ",
                                            NameOf(member.now), ": its GPU state is not back"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::gpu
