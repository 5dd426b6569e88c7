// What a JobMover knows and does of processes whose memory is out: what is noted of them, their watches, and
// whether the driver that is here now can take them back.
#include <algorithm>
#include <iterator>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "gpu_state/job_mover.h"
#include "gpu_state/process_claim.h"

namespace rekindle::gpu {
namespace {

// Of somebody who only looks at a process, or watches it.
constexpr absl::Duration kAClaimMayLast = absl::Seconds(10), kClaimAgainEvery = absl::Milliseconds(20);

}  // namespace

std::string JobMover::NoteFor(absl::Span<const pid_t> pids) {
  std::vector<LedgerEntry> entries = ledger_.Of(pids).value_or(std::vector<LedgerEntry>());
  for (LedgerEntry& entry : entries) {
    if (entry.goal == LedgerEntry::Goal::kRunning) entry.why = "its move was interrupted";
    entry.goal = LedgerEntry::Goal::kParked;
    entry.keeps_room = false;
  }
  return Ledger::Note(entries);
}

std::vector<LedgerEntry> JobMover::ParkedElsewhere() {
  std::vector<LedgerEntry> noted;
  for (pid_t watcher : ThreadKeeper::Watchers()) {
    for (LedgerEntry& entry : Ledger::FromNote(ThreadKeeper::NoteOf(watcher))) {
      const auto known = ledger_.Of({entry.pid});
      // Of one that it has let go, nothing may be known.
      if (known.ok() && known->empty() && ThreadKeeper::IsWatched(entry.pid))
        noted.push_back(std::move(entry));
    }
  }
  // Whoever has brought one back may have ended before its watch.
  std::vector<pid_t> pids, running;
  for (const LedgerEntry& entry : noted) pids.push_back(entry.pid);
  const auto states = States(pids, DriverClient::Purpose::kToShow);
  for (size_t i = 0; i < pids.size(); ++i) {
    if (states[i].ok() && *states[i] == ProcessState::kRunning) running.push_back(pids[i]);
  }
  std::erase_if(noted, [&running](const LedgerEntry& e) { return absl::c_linear_search(running, e.pid); });
  return noted;
}

std::string JobMover::DriverTrouble(const LedgerEntry& entry) {
  const absl::StatusOr<DriverInfo> info = driver_.Info();
  if (!info.ok() || info->driver.empty() || entry.driver.empty() || info->driver == entry.driver) return "";
  return absl::StrCat("process ", entry.pid, " was parked with NVIDIA driver ", entry.driver,
                      ", whose library it has in its memory, and this machine has ", info->driver,
                      " now, which can't take it back: it stays parked; install ", entry.driver,
                      " again (libraries and kernel module), then `rekindle gpu resume ", entry.job,
                      "`, or end the job and start it anew");
}

absl::Status JobMover::CheckDriver(absl::Span<const pid_t> pids) {
  RK_ASSIGN_OR_RETURN(const std::vector<LedgerEntry> entries, ledger_.Of(pids));
  for (const LedgerEntry& entry : entries) {
    const std::string trouble = DriverTrouble(entry);
    if (trouble.empty()) continue;
    // Another tool may have brought it back before the driver changed.
    const auto state = States({entry.pid}).front();
    if (!state.ok() || *state != ProcessState::kRunning) return absl::FailedPreconditionError(trouble);
  }
  return absl::OkStatus();
}

void JobMover::NoteUnplaced(absl::Span<const pid_t> pids) {
  std::vector<LedgerEntry> entries = ledger_.Of(pids).value_or(std::vector<LedgerEntry>());
  for (LedgerEntry& entry : entries) {
    entry.uses.clear();
    entry.driver.clear();
    entry.unplaced = true;
  }
  if (ledger_.Put(entries).ok()) return;
  // Rather nothing than what was guessed.
  ledger_.Remove(pids);
}

void JobMover::RecallParked(absl::Span<const pid_t> pids) {
  for (pid_t pid : pids) {
    const auto known = ledger_.Of({pid});
    if (!known.ok() || (!known->empty() && !known->front().unplaced)) continue;
    std::vector<LedgerEntry> noted = Ledger::FromNote(ThreadKeeper::NoteOver(pid));
    std::erase_if(noted, [pid](const LedgerEntry& entry) { return entry.pid != pid || entry.unplaced; });
    if (const absl::Status put = ledger_.Put(noted); !put.ok()) Log(LogLevel::kWarning, put.message());
  }
}

void JobMover::WatchParked(const std::vector<pid_t>& pids) {
  std::vector<pid_t> unwatched;
  absl::c_copy_if(pids, std::back_inserter(unwatched),
                  [](pid_t pid) { return !ThreadKeeper::IsWatched(pid); });
  if (unwatched.empty()) return;
  // Somebody may be bringing it back by now.
  const auto claim = ProcessClaim::Make(ledger_, pids);
  if (!claim.ok() || !CheckNobodyElseMoves(pids).ok()) return;
  GpuSession session(driver_, pids, OptionsWith(absl::ZeroDuration()));
  session.NoteAreas(AreasOf(pids));
  if (session.Begin(GpuSession::Locked::kByUs).ok()) session.Watch();
}

std::vector<LedgerEntry> JobMover::Unwatched(absl::Span<const pid_t> pids) {
  std::vector<LedgerEntry> entries = ledger_.Of(pids).value_or(std::vector<LedgerEntry>());
  std::erase_if(entries, [](const LedgerEntry& entry) {
    return entry.goal != LedgerEntry::Goal::kParked || ThreadKeeper::IsWatched(entry.pid);
  });
  return entries;
}

absl::Status JobMover::WatchClaimed(absl::Span<const pid_t> pids) {
  const auto claim = ProcessClaim::Make(ledger_, pids);
  RK_RETURN_IF_ERROR(claim.status());
  RK_RETURN_IF_ERROR(CheckNobodyElseMoves(pids));
  WatchEntries(Unwatched(pids));
  return absl::OkStatus();
}

void JobMover::WatchNoted(absl::Span<const pid_t> pids) {
  for (const Deadline deadline(kAClaimMayLast); !Unwatched(pids).empty(); absl::SleepFor(kClaimAgainEvery)) {
    const absl::Status watched = WatchClaimed(pids);
    if (watched.ok()) return;
    if (absl::IsAborted(watched) && !deadline.passed()) continue;
    return Log(LogLevel::kWarning,
               absl::StrCat("nobody watches process ", absl::StrJoin(pids, ", "),
                            ", whose GPU memory is out, and which can die of that: ", watched.message()));
  }
}

void JobMover::WatchAgain() {
  std::vector<pid_t> pids;
  for (const LedgerEntry& entry : Parked().value_or(std::vector<LedgerEntry>())) {
    if (!ThreadKeeper::IsWatched(entry.pid)) pids.push_back(entry.pid);
  }
  // Without a claim, which would have whoever wants to move them meanwhile refused.
  const auto states = States(pids, DriverClient::Purpose::kToShow);
  for (size_t i = 0; i < pids.size(); ++i) {
    // Whatever is not running may have its memory out; what is stopped runs into nothing meanwhile.
    const bool may_be_out =
        states[i].ok() ? *states[i] == ProcessState::kCheckpointed || *states[i] == ProcessState::kLocked
                       : absl::IsUnavailable(states[i].status());
    if (may_be_out) WatchClaimed({pids[i]}).IgnoreError();
  }
}

std::string JobMover::WatchTrouble(const LedgerEntry& entry) {
  if (ThreadKeeper::IsWatched(entry.pid)) return "";
  return absl::StrCat(
      "nobody watches process ", entry.pid,
      ", which can die of waiting for a stream, an event or a context before it is resumed (does "
      "a debugger trace it?): `rekindle gpu resume ",
      entry.job, "` ends that");
}

void JobMover::WatchOut(absl::Span<const pid_t> pids) {
  auto entries = ledger_.List();
  if (!entries.ok()) return;
  std::erase_if(*entries, [&](const LedgerEntry& e) { return !absl::c_linear_search(pids, e.pid); });
  WatchEntries(*entries);
}

void JobMover::WatchEntries(absl::Span<const LedgerEntry> entries) {
  std::map<pid_t, std::vector<pid_t>> jobs;
  for (const LedgerEntry& entry : entries) jobs[entry.job].push_back(entry.pid);
  for (const auto& [job, of_job] : jobs) {
    auto keeper = ThreadKeeper::Hold(of_job, AreasOf(of_job));
    const absl::Status watched = keeper.ok() ? (*keeper)->Watch(NoteFor(of_job)) : keeper.status();
    if (!watched.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("job ", job, " goes on without its GPU memory, unwatched: ", watched.message()));
    }
  }
}

bool JobMover::AreOut(absl::Span<const pid_t> pids) {
  auto entries = ledger_.List();
  return entries.ok() && absl::c_any_of(*entries, [pids](const LedgerEntry& entry) {
           return absl::c_linear_search(pids, entry.pid);
         });
}

std::vector<pid_t> JobMover::BeingMoved(absl::Span<const pid_t> pids) {
  std::vector<pid_t> moved;
  auto entries = ledger_.Of(pids);
  for (const LedgerEntry& entry : entries.value_or(std::vector<LedgerEntry>())) {
    if (ledger_.IsBeingMoved(entry)) moved.push_back(entry.pid);
  }
  return moved;
}

absl::StatusOr<std::vector<LedgerEntry>> JobMover::Parked() {
  RK_ASSIGN_OR_RETURN(std::vector<LedgerEntry> entries, ledger_.List());
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [](const LedgerEntry& e) { return e.goal != LedgerEntry::Goal::kParked; }),
                entries.end());
  return entries;
}

void JobMover::ForgetRunning(absl::Span<const pid_t> pids) {
  auto claim = ProcessClaim::Make(ledger_, pids);
  if (!claim.ok() || !CheckNobodyElseMoves(pids).ok()) return;
  const auto states = States(pids);
  for (size_t i = 0; i < pids.size(); ++i) {
    if (!states[i].ok() || *states[i] != ProcessState::kRunning) continue;
    ThreadKeeper::EndWatchOver(pids[i]);
    ledger_.Remove({pids[i]});
  }
}

}  // namespace rekindle::gpu
