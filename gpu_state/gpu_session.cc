#include "gpu_state/gpu_session.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "gpu_state/device_plan.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/launch_jobs.h"

namespace rekindle::gpu {
namespace {

// Beyond a lock's own time-out: for the driver to give up.
constexpr absl::Duration kGrace = absl::Seconds(15);
constexpr int kAttempts = 2;
// Of an unlock, which waits for nothing.
constexpr absl::Duration kUnlockMayTake = absl::Seconds(60);
// What answers at all does so in that time, however late it is.
constexpr absl::Duration kLeastTimeout = absl::Seconds(1);
// At own memory that does not fit a state: what was begun may be undone just now.
constexpr int kMostLooks = 20;
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

bool IsGone(pid_t pid) {
  auto stat = ReadProcessStat(pid);
  return stat.ok() ? stat->ending() : absl::IsNotFound(stat.status());
}

}  // namespace

GpuSession::GpuSession(DriverClient& driver, std::vector<pid_t> pids, SessionOptions options)
    : driver_(driver), pids_(std::move(pids)), options_(std::move(options)) {}

bool GpuSession::all_in(ProcessState state) const {
  return std::all_of(members_.begin(), members_.end(), [state](const Member& m) { return m.now == state; });
}

std::vector<pid_t> GpuSession::NotRunning() const {
  std::vector<pid_t> pids;
  for (const Member& member : members_) {
    if (!member.gone && (member.hangs || member.now != ProcessState::kRunning)) pids.push_back(member.pid);
  }
  return pids;
}

bool GpuSession::hangs() const {
  return absl::c_any_of(members_, [](const Member& m) { return m.hangs && !m.gone; });
}

absl::Duration GpuSession::LeftOf(absl::Duration timeout) const {
  return std::min(timeout, std::max(recovers_until_ - SteadyNow(), kLeastTimeout));
}

std::vector<pid_t> GpuSession::RunningAtBegin() const {
  std::vector<pid_t> pids;
  for (const Member& member : members_) {
    if (member.before == ProcessState::kRunning) pids.push_back(member.pid);
  }
  return pids;
}

absl::Status GpuSession::AskStates(absl::Duration timeout) {
  std::vector<pid_t> pids;
  for (const Member& member : members_) pids.push_back(member.pid);
  auto states = driver_.States(pids, timeout);
  absl::Status first;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (states[i].ok()) {
      member.now = *states[i];
      member.unanswered = member.hangs = false;
    } else {
      member.gone = IsGone(member.pid);
      member.hangs = member.unanswered && absl::IsUnavailable(states[i].status());
      first.Update(member.gone ? absl::NotFoundError(absl::StrCat("process ", member.pid, " has ended"))
                               : states[i].status());
    }
  }
  if (absl::c_none_of(members_, [](const Member& m) { return m.unanswered && !m.gone; }))
    recovers_until_ = absl::InfiniteFuture();
  return first;
}

bool GpuSession::IsPlausible(const Member& member, Action action, uint64_t own_bytes) const {
  const auto there = on_devices_.find(member.pid);
  if (member.gone || there == on_devices_.end()) return true;
  const uint64_t now = OwnBytes({member.pid});
  const uint64_t grown = now - std::min(now, own_bytes), gone = own_bytes - std::min(now, own_bytes);
  const auto& [bytes, gpus] = there->second;
  const bool is_out = member.now == ProcessState::kCheckpointed;
  if (action == Action::kRestore) return is_out || CanBeWholeMove(bytes, gpus, gone);
  return is_out ? CanBeWholeMove(bytes, gpus, grown) : grown < bytes;
}

absl::Status GpuSession::AskUntilPlausible(Action action, const std::map<pid_t, uint64_t>& own_bytes) {
  for (int look = 0;; ++look) {
    RK_RETURN_IF_ERROR(AskStates());
    const auto odd = absl::c_find_if(members_, [&](const Member& member) {
      const auto had = own_bytes.find(member.pid);
      return had != own_bytes.end() && !IsPlausible(member, action, had->second);
    });
    if (odd == members_.end()) return absl::OkStatus();
    if (look == kMostLooks) {
      return absl::UnavailableError(absl::StrCat("the driver says that process ", odd->pid, " is ",
                                                 NameOf(odd->now), ", which its host memory contradicts"));
    }
    absl::SleepFor(kLookAgain);
  }
}

absl::Status GpuSession::Begin(Locked locked) {
  members_.clear();
  for (pid_t pid : pids_) members_.emplace_back().pid = pid;
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

absl::Status GpuSession::FindThreads() {
  RK_ASSIGN_OR_RETURN(threads_, driver_.RestoreThreads(pids_, options_.query_timeout));
  return absl::OkStatus();
}

void GpuSession::NoteUses(absl::Span<const GpuUse> uses) {
  for (const GpuUse& use : uses) {
    OnDevices& there = on_devices_[use.pid];
    there.bytes += use.bytes.value_or(0);
    ++there.gpus;
  }
  for (const GpuUse& use : uses) {
    if (!use.bytes) on_devices_.erase(use.pid);  // of what it has on one GPU alone nothing follows
  }
}

absl::Status GpuSession::Run(ThreadKeeper& keeper, std::vector<RestoreThread> threads,
                             bool for_device_memory) const {
  for (RestoreThread& thread : threads) {
    const auto there = on_devices_.find(thread.pid);
    if (there != on_devices_.end()) thread.device_bytes = there->second.bytes;
  }
  return keeper.Run(threads, for_device_memory);
}

absl::Status GpuSession::LetRun(ThreadKeeper& keeper, bool for_device_memory) {
  RK_RETURN_IF_ERROR(Run(keeper, threads_, for_device_memory));
  keeper_ = &keeper;
  return absl::OkStatus();
}

absl::Status GpuSession::LetStand() {
  // The driver's thread may be where nothing stops it: the keeper tries that at its end, and no longer.
  if (hangs()) keeper_ = nullptr;
  return keeper_ == nullptr ? absl::OkStatus() : std::exchange(keeper_, nullptr)->Pause();
}

void GpuSession::HoldOthers(Action action) {
  if (!ThreadsAreHeld() || keeper_ != nullptr || own_keeper_ != nullptr) return;
  std::vector<pid_t> pids;
  for (const Member& member : members_) {
    if (!member.gone && member.now != ProcessState::kRunning) pids.push_back(member.pid);
  }
  std::vector<RestoreThread> threads;
  absl::c_copy_if(threads_, std::back_inserter(threads),
                  [&pids](const RestoreThread& thread) { return absl::c_linear_search(pids, thread.pid); });
  if (threads.size() < pids.size()) {
    auto asked = driver_.RestoreThreads(pids, options_.query_timeout);
    if (!asked.ok()) return;  // an older driver
    threads = *std::move(asked);
  }
  auto keeper = ThreadKeeper::Hold(pids, areas_);
  absl::Status held = keeper.status();
  if (held.ok()) held = Run(**keeper, std::move(threads), action == Action::kCheckpoint);
  if (!held.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("the threads of a job run while its device memory is out: ", held.message()));
    return;
  }
  own_keeper_ = *std::move(keeper);
  held_ = std::move(pids);
}

void GpuSession::LetGo() {
  const bool there =
      absl::c_all_of(members_, [](const Member& m) { return m.gone || m.now == ProcessState::kRunning; });
  if (own_keeper_ != nullptr) own_keeper_->End(there);
  own_keeper_.reset();
}

absl::Status GpuSession::EndWatch() {
  std::vector<pid_t> watched;
  for (const Member& member : members_) {
    if (member.gone) continue;
    // A running one can be watched still where whoever had brought it back was killed.
    if (member.now == ProcessState::kCheckpointed || ThreadKeeper::IsWatched(member.pid)) {
      watched.push_back(member.pid);
    }
  }
  if (watched.empty()) return absl::OkStatus();
  // All at once: one watch may be over several.
  RK_RETURN_IF_ERROR(ThreadKeeper::Hold(watched, areas_).status());
  for (const Member& member : members_) {
    if (member.gone || !ThreadKeeper::WaitsForMemory(member.pid)) continue;
    Watch();
    return absl::FailedPreconditionError(absl::StrCat(
        "a thread of process ", member.pid,
        " stands still until its device memory is back: let it go on first (`rekindle gpu resume ",
        member.pid, "`)"));
  }
  return absl::OkStatus();
}

void GpuSession::Watch() {
  std::vector<pid_t> parked;
  for (const Member& member : members_) {
    if (member.gone) continue;
    // Of one that hangs on its way nobody knows where its memory is.
    const bool may_be_out =
        member.now == ProcessState::kCheckpointed || (member.hangs && member.now == ProcessState::kLocked);
    if (may_be_out) parked.push_back(member.pid);
  }
  if (parked != held_) LetGo();
  if (parked.empty()) return;
  absl::Status watched;
  if (own_keeper_ == nullptr) {
    auto keeper = ThreadKeeper::Hold(parked, areas_);
    watched = keeper.status();
    if (keeper.ok()) own_keeper_ = *std::move(keeper);
  }
  if (own_keeper_ != nullptr) watched = own_keeper_->Watch(options_.note ? options_.note(parked) : "");
  own_keeper_.reset();
  if (!watched.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("a parked job that waits for a stream, an event or a context before it "
                     "is resumed can die of that: ",
                     watched.message()));
  }
}

std::map<pid_t, absl::Status> GpuSession::ActInRounds(Action action, absl::Span<const pid_t> pids,
                                                      ActOptions options, absl::Duration timeout) {
  std::map<pid_t, absl::Status> results;
  // All are locked within one time-out.
  const absl::Time locked_by = SteadyNow() + options.lock_timeout;
  // After a call without an answer the next ones would wait as long, and nothing may be asked of a process
  // before its state is known.
  bool failed = false, unanswered = false;
  for (const std::vector<pid_t>& round : RoundsOf(pids)) {
    const bool would_be_undone = action == Action::kLock || action == Action::kCheckpoint;
    if (unanswered || (failed && would_be_undone)) break;
    if (action == Action::kLock)
      options.lock_timeout = std::max(locked_by - SteadyNow(), absl::Milliseconds(1));
    const std::vector<absl::Status> of_round = driver_.Act(action, round, options, timeout);
    for (size_t i = 0; i < round.size(); ++i) {
      failed |= !of_round[i].ok();
      // Of one that has died there is none.
      unanswered |= absl::IsUnavailable(of_round[i]) && !IsGone(round[i]);
      results[round[i]] = of_round[i];
    }
  }
  return results;
}

void GpuSession::UndoLocks(absl::Span<Member* const> members, const std::map<pid_t, absl::Status>& results) {
  std::vector<pid_t> pids;
  for (const Member* member : members) {
    const auto locked = results.find(member->pid);
    const bool unanswered = locked != results.end() && absl::IsUnavailable(locked->second);
    if (!member->gone && (unanswered || member->now == ProcessState::kLocked)) pids.push_back(member->pid);
  }
  // Behind a lock that is still to be carried out. Of one that is not locked it is refused.
  const std::map<pid_t, absl::Status> unlocked = ActInRounds(Action::kUnlock, pids, {}, LeftOf(kGrace));
  for (Member* member : members) {
    const auto done = unlocked.find(member->pid);
    if (done != unlocked.end() && done->second.ok()) member->now = ProcessState::kRunning;
  }
}

template <typename Chosen>
absl::Status GpuSession::ActOn(Action action, Chosen chosen, const ActOptions& options) {
  std::vector<pid_t> pids;
  std::vector<Member*> members;
  for (Member& member : members_) {
    if (member.gone || member.hangs || !StateAfter(member.now, action) || !chosen(member)) continue;
    pids.push_back(member.pid);
    members.push_back(&member);
  }
  if (pids.empty()) return absl::OkStatus();
  // A move that a recovery makes is of one that answers, and takes as long as ever.
  const absl::Duration timeout = action == Action::kLock     ? options.lock_timeout + kGrace
                                 : action == Action::kUnlock ? LeftOf(kUnlockMayTake)
                                                             : options_.move_timeout;
  if (action == Action::kCheckpoint || action == Action::kRestore) HoldOthers(action);
  std::map<pid_t, uint64_t> own_bytes;
  if (action == Action::kCheckpoint || action == Action::kRestore) {
    for (pid_t pid : pids) own_bytes[pid] = OwnBytes({pid});
  }
  const std::map<pid_t, absl::Status> results = ActInRounds(action, pids, options, timeout);
  absl::Status first;
  bool unsure = false;
  for (Member* member : members) {
    const auto done = results.find(member->pid);
    if (done == results.end()) {
      own_bytes.erase(member->pid);
      continue;
    }
    const absl::Status& result = done->second;
    if (result.ok()) {
      member->now = *StateAfter(member->now, action);
      own_bytes.erase(member->pid);
      continue;
    }
    member->gone = IsGone(member->pid);
    if (member->gone) {
      first.Update(absl::AbortedError(absl::StrCat("process ", member->pid, " died")));
      continue;
    }
    // An error that the driver itself told says how it is.
    member->unanswered = absl::IsUnavailable(result);
    if (!member->unanswered) own_bytes.erase(member->pid);
    if (member->unanswered && recovers_until_ == absl::InfiniteFuture())
      recovers_until_ = SteadyNow() + options_.recovery_timeout;
    // What a lock's time-out leaves behind is known; nothing else is.
    unsure |= !(action == Action::kLock && absl::IsDeadlineExceeded(result));
    first.Update(Annotate(result, absl::StrCat(NameOf(action), " of process ", member->pid)));
  }
  if (unsure) {
    if (action == Action::kLock) UndoLocks(members, results);
    absl::Status asked = AskUntilPlausible(action, own_bytes);
    if (!asked.ok() && !absl::IsNotFound(asked)) first = BothFailures(first, asked);
  }
  return first;
}

template <typename Chosen>
absl::Status GpuSession::BringUp(Chosen chosen, const ActOptions& restore, bool exact) {
  auto is_there = [&chosen](const Member& member) { return !member.gone && chosen(member); };
  auto any_in = [&](ProcessState state) {
    return absl::c_any_of(members_, [&](const Member& m) { return is_there(m) && m.now == state; });
  };
  absl::Status status;
  ActOptions how = restore;
  // Behind a call that hangs another one would wait as well, and who is killed in one may harm the job.
  for (int attempt = 0; attempt < kAttempts && !hangs(); ++attempt) {
    absl::Status restored = ActOn(Action::kRestore, chosen, how);
    // Of each GPU that a process sees the driver may want to be told; which these are it does not tell.
    if (!exact && absl::IsInvalidArgument(restored) && how.pairs == restore.pairs) {
      auto view = driver_.Devices();
      auto all = view.ok() ? WithOtherDevices(restore.pairs, view->devices) : DevicePairs();
      if (!all.empty()) {
        how.pairs = std::move(all);
        restored = ActOn(Action::kRestore, chosen, how);
      }
    }
    // The first failure tells why; a driver may answer all further tries with another one.
    if (!restored.ok() && !status.ok()) restored = BothFailures(status, restored);
    status = std::move(restored);
    // Not some without the others: they may wait for each other. One whose state is lost helps nobody by
    // having the others stand still.
    if (!status.ok() && (any_in(ProcessState::kCheckpointed) || hangs())) continue;
    status.Update(ActOn(Action::kUnlock, chosen));
    if (hangs()) break;
    absl::Status asked = AskStates();
    if (!asked.ok() && !absl::IsNotFound(asked)) status.Update(asked);
    if (absl::c_all_of(members_, [&](const Member& m) {
          return !is_there(m) || m.now == ProcessState::kRunning || m.now == ProcessState::kFailed;
        })) {
      break;
    }
  }
  if (!hangs() && (any_in(ProcessState::kCheckpointed) || any_in(ProcessState::kLocked))) {
    // What is on the device goes out again, so that it is in nobody's way until all of it can go back.
    if (status.ok()) {
      status = absl::InternalError("the NVIDIA driver reported success and did not bring all processes back");
    }
    (void)ActOn(Action::kLock, chosen);
    (void)ActOn(Action::kCheckpoint, chosen);
  }
  // Those that another one keeps are watched when it has let go of them.
  if (keeper_ == nullptr) Watch();
  std::vector<std::string> left;
  for (const Member& member : members_) {
    if (!is_there(member) || (member.now == ProcessState::kRunning && !member.hangs)) continue;
    left.push_back(member.hangs ? absl::StrCat("the driver gives no answer about process ", member.pid,
                                               " any more, last known as ", NameOf(member.now))
                   : member.now == ProcessState::kFailed
                       ? absl::StrCat("the driver says that the GPU state of process ", member.pid,
                                      " is lost (failed), and ", kOnlyANewStartHelps)
                       : absl::StrCat("process ", member.pid, " is left ", NameOf(member.now)));
  }
  if (left.empty()) return absl::OkStatus();
  if (status.ok() && hangs()) status = absl::UnavailableError("the NVIDIA driver hangs in a call");
  if (status.ok()) status = absl::DataLossError("the driver reported no error");
  std::string text = absl::StrJoin(left, ", ");
  if (absl::StrContains(status.message(), kOnlyANewStartHelps)) {
    absl::StrAppend(&text, "; `rekindle gpu ps` lists it");
  } else if (hangs()) {
    absl::StrAppend(&text,
                    ": all is left as it is; `rekindle gpu ps` lists it, and `rekindle gpu resume` tries ",
                    "again once the driver answers; should it never, the job is to be ended");
  } else if (any_in(ProcessState::kCheckpointed) || any_in(ProcessState::kLocked)) {
    absl::StrAppend(&text, "; `rekindle gpu resume` tries again, and `rekindle gpu ps` lists it");
  }
  return Annotate(status, text);
}

absl::Status GpuSession::PutBack() {
  return BringUp([](const Member& member) { return member.before == ProcessState::kRunning; });
}

absl::Status GpuSession::Lock() {
  ActOptions lock;
  lock.lock_timeout = options_.lock_timeout;
  auto all = [](const Member&) { return true; };
  absl::Status status = ActOn(Action::kLock, all, lock);
  if (absl::IsDeadlineExceeded(status)) {
    status = absl::DeadlineExceededError(absl::StrCat(
        status.message(), ": work on the GPU did not end within ",
        absl::FormatDuration(options_.lock_timeout), "; try again, or with a longer --gpu-lock-timeout"));
  }
  return status.ok() ? status : BothFailures(status, PutBack());
}

absl::Status GpuSession::MoveToHost() {
  RK_RETURN_IF_ERROR(Lock());
  absl::Status status = ActOn(Action::kCheckpoint, [](const Member&) { return true; });
  if (status.ok() && !all_in(ProcessState::kCheckpointed)) {
    status = absl::InternalError("the NVIDIA driver reported success and did not move all processes");
  }
  if (status.ok()) return status;
  if (absl::IsUnimplemented(status)) {
    status = absl::UnimplementedError(absl::StrCat(status.message(),
                                                   " (the driver's checkpoints do not cover managed "
                                                   "(unified) memory, CUDA IPC memory before 610, MIG, or "
                                                   "graphics interop; driver 595 was seen to break a job "
                                                   "with managed memory as it refused: see whether it "
                                                   "still works)"));
  }
  return BothFailures(status, PutBack());
}

absl::Status GpuSession::MoveToDevice(const std::vector<std::pair<std::string, std::string>>& pairs,
                                      bool exact) {
  ActOptions restore;
  restore.pairs = pairs;
  RK_RETURN_IF_ERROR(BringUp([](const Member&) { return true; }, restore, exact));
  for (const Member& member : members_) {
    if (member.gone) return absl::AbortedError(absl::StrCat("process ", member.pid, " died"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::gpu
