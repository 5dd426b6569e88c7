#include "daemon/copy_followers.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/copy_notes.h"
#include "daemon/node.h"
#include "rekindle/v1/copy_trouble.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kReconcileEvery = absl::Seconds(1), kLookForLast = absl::Milliseconds(200);
// Which looks at the store.
constexpr absl::Duration kTellEvery = absl::Seconds(5);
constexpr absl::Duration kFirstRestartAfter = absl::Seconds(1), kLastRestartAfter = absl::Minutes(1);
// One that has run for so long did not end for what made the one before it end.
constexpr absl::Duration kHasWorked = absl::Minutes(1);
// For the last image of a job that has ended.
constexpr absl::Duration kLastImageMayTake = absl::Hours(1);
constexpr absl::Duration kCommandsEndMayTake = absl::Seconds(3);

int64_t MonotonicAfter(absl::Duration time) { return MonotonicNanos() + absl::ToInt64Nanoseconds(time); }

const v1::CopyState* NoteOf(const std::vector<v1::CopyState>& notes, const CopyPlan& plan) {
  const auto note = std::find_if(notes.begin(), notes.end(), [&](const v1::CopyState& one) {
    return one.owner_uid() == plan.user.uid && one.name() == plan.images && one.place() == plan.to.place();
  });
  return note == notes.end() ? nullptr : &*note;
}

v1::NoteCopyRequest NoteAbout(const CopyPlan& plan) {
  v1::NoteCopyRequest note;
  note.set_name(plan.images);
  note.set_place(plan.to.place());
  return note;
}

bool IsThere(const std::vector<v1::CopyState>& notes, const CopyPlan& plan) {
  const v1::CopyState* note = NoteOf(notes, plan);
  return plan.newest.empty() || (note != nullptr && note->digest() == plan.newest);
}

}  // namespace

CopyFollowers::CopyFollowers(const NodeOptions& node, Asks asks)
    : node_(node), asks_(std::move(asks)), thread_(&CopyFollowers::Loop, this) {}

CopyFollowers::~CopyFollowers() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wakeup_.Notify();
  thread_.join();
}

void CopyFollowers::Loop() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) break;
    }
    Reconcile();
    wakeup_.WaitFor(kReconcileEvery);
  }
  std::vector<Subprocess*> all;
  for (const auto& [job, follower] : followers_) all.push_back(&follower->process);
  EndCopying(all, kCommandsEndMayTake);
  followers_.clear();
}

std::vector<CopyPlan> CopyFollowers::Wanted() const {
  std::vector<CopyPlan> plans = asks_.plans();
  const int64_t now = UnixNanos();
  const auto has_ended = [](const CopyPlan& plan) { return plan.ended_unix_ns != 0; };
  std::erase_if(plans, [&](const CopyPlan& plan) {
    return has_ended(plan) && now - plan.ended_unix_ns > absl::ToInt64Nanoseconds(kLastImageMayTake);
  });
  if (std::none_of(plans.begin(), plans.end(), has_ended)) return plans;
  const std::vector<v1::CopyState> notes = CopyNotes(node_.store).List(now);
  std::erase_if(plans, [&](const CopyPlan& plan) { return has_ended(plan) && IsThere(notes, plan); });
  return plans;
}

void CopyFollowers::Reconcile() {
  std::map<std::string, CopyPlan> wanted;
  for (CopyPlan& plan : Wanted()) wanted.emplace(plan.job, std::move(plan));
  std::vector<std::unique_ptr<Follower>> unwanted;
  for (auto it = followers_.begin(); it != followers_.end();) {
    const auto plan = wanted.find(it->first);
    if (plan != wanted.end() && plan->second.SameCommand(it->second->plan)) {
      it->second->plan = std::move(plan->second);
      wanted.erase(plan);
      ++it;
    } else {
      unwanted.push_back(std::move(it->second));
      it = followers_.erase(it);
    }
  }
  std::vector<Subprocess*> ending;
  for (const auto& follower : unwanted) ending.push_back(&follower->process);
  EndCopying(ending, kCommandsEndMayTake);
  for (auto& [job, plan] : wanted) {
    auto follower = std::make_unique<Follower>();
    follower->plan = std::move(plan);
    followers_[job] = std::move(follower);
  }
  for (const auto& [job, follower] : followers_) LookAfter(*follower);
  if (followers_.empty() || MonotonicNanos() < tell_at_ns_) return;
  tell_at_ns_ = MonotonicAfter(kTellEvery);
  TellOfTrouble();
}

void CopyFollowers::TellOfTrouble() {
  const std::vector<v1::CopyState> states = asks_.states();
  for (const auto& [job, follower] : followers_) {
    const v1::CopyState* state = NoteOf(states, follower->plan);
    if (state == nullptr || !state->trouble().empty() == follower->troubled) continue;
    follower->troubled = !follower->troubled;
    asks_.tell(follower->plan, state->trouble());
  }
}

void CopyFollowers::LookAfter(Follower& follower) {
  if (!follower.process.running()) {
    if (MonotonicNanos() >= follower.start_at_ns) Start(follower);
    return;
  }
  follower.output.Take();
  if (!AwaitExit(follower.process.pidfd(), absl::ZeroDuration())) return;
  follower.output.Take();
  const absl::StatusOr<ExitState> exit = follower.process.Wait();
  const bool has_worked = MonotonicAfter(-kHasWorked) > follower.started_at_ns;
  follower.back_off = has_worked ? kFirstRestartAfter
                                 : std::clamp(2 * follower.back_off, kFirstRestartAfter, kLastRestartAfter);
  follower.start_at_ns = MonotonicAfter(follower.back_off);
  NoteTrouble(follower.plan, absl::StrCat("the command that copies them has ended (",
                                          exit.ok() ? exit->ToString() : std::string(exit.status().message()),
                                          "), and is started again: ", follower.output.Error()));
}

void CopyFollowers::Start(Follower& follower) {
  std::vector<std::string> options = {"--follow", absl::StrCat("--keep=", std::max(follower.plan.keep, 1U))};
  const auto start = [&]() -> absl::StatusOr<Subprocess> {
    RK_ASSIGN_OR_RETURN(follower.output, CommandOutput::Make());
    return StartCopying(node_, follower.plan, options, follower.output);
  };
  absl::StatusOr<Subprocess> process = start();
  follower.started_at_ns = MonotonicNanos();
  if (process.ok()) {
    follower.process = *std::move(process);
    return;
  }
  follower.back_off = std::clamp(2 * follower.back_off, kFirstRestartAfter, kLastRestartAfter);
  follower.start_at_ns = MonotonicAfter(follower.back_off);
  NoteTrouble(follower.plan, std::string(process.status().message()));
}

void CopyFollowers::NoteTrouble(const CopyPlan& plan, const std::string& why) const {
  Log(LogLevel::kWarning,
      absl::StrCat("images of job '", plan.job, "' are not copied to ", plan.to.place(), ": ", why));
  v1::NoteCopyRequest note = NoteAbout(plan);
  note.set_error(why);
  CopyNotes(node_.store).Note(plan.user.uid, note, UnixNanos()).IgnoreError();
}

bool CopyFollowers::CanBeNoted(const CopyPlan& plan) const {
  return CopyNotes(node_.store).Note(plan.user.uid, NoteAbout(plan), UnixNanos()).ok();
}

void CopyFollowers::AwaitCopies(const Deadline& deadline, bool of_ended,
                                const std::function<bool()>& given_up) {
  // Who waits in the foreground is told when it takes long.
  const LogLevel level = of_ended ? LogLevel::kWarning : LogLevel::kInfo;
  const Deadline told_at(of_ended ? kTellEvery : absl::ZeroDuration());
  for (bool told = false;;) {
    std::vector<std::string> missing;
    bool goes_on = false;
    const std::vector<CopyPlan> plans = asks_.plans();
    if (plans.empty()) return;
    const std::vector<v1::CopyState> notes = CopyNotes(node_.store).List(UnixNanos());
    for (const CopyPlan& plan : plans) {
      if ((plan.ended_unix_ns != 0 && !of_ended) || IsThere(notes, plan)) continue;
      missing.push_back(of_ended ? absl::StrCat(plan.job, " ('rekindle copy ", plan.images, " --to ",
                                                plan.to.place(), "' tries it again)")
                                 : plan.job);
      const v1::CopyState* note = NoteOf(notes, plan);
      goes_on = goes_on || (note == nullptr ? CanBeNoted(plan)
                                            : note->last_error().empty() ||
                                                  absl::StartsWith(note->last_error(), v1::kGoesOnElsewhere));
    }
    if (missing.empty()) return;
    if (!goes_on || deadline.passed() || (given_up && given_up())) {
      return Log(LogLevel::kWarning,
                 absl::StrCat("the last images of these jobs are not yet where they are to be "
                              "copied to: ",
                              absl::StrJoin(missing, ", ")));
    }
    if (!told && told_at.passed()) {
      told = true;
      Log(level, absl::StrCat("waiting for last images to be copied",
                              of_ended ? ", which Ctrl-C ends: " : ": ", absl::StrJoin(missing, ", ")));
    }
    absl::SleepFor(std::min(kLookForLast, deadline.left()));
  }
}

}  // namespace rekindle::daemon
