#include "ckpt/death_watch.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/pidfd.h"
#include "base/process_stat.h"

namespace rekindle::ckpt {
namespace {

// Most dumps have ended by then.
constexpr absl::Duration kLookAtJobEvery = absl::Milliseconds(500);

}  // namespace

DeathWatch::DeathWatch(pid_t root) : root_(root) { LookAtTree(); }

void DeathWatch::LookAtTree() {
  for (pid_t pid : ProcessTree(root_)) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && !stat->ending()) processes_[pid] = stat->start_ticks;
  }
}

absl::Status DeathWatch::Start() {
  return thread_.Start([this] { Run(); });
}

void DeathWatch::Guard(int criu_pidfd, pid_t criu) {
  absl::MutexLock lock(&mutex_);
  criu_pidfd_ = criu_pidfd;
  criu_ = criu;
}

std::optional<pid_t> DeathWatch::ended_for() const {
  absl::MutexLock lock(&mutex_);
  return ended_for_;
}

std::optional<pid_t> DeathWatch::DeadOf(pid_t criu) const {
  for (const auto& [pid, began] : processes_) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && stat->start_ticks == began && stat->ending() && TracerOf(absl::StrCat(pid)) == criu)
      return pid;
  }
  return std::nullopt;
}

void DeathWatch::Run() {
  std::optional<Deadline> patience;  // since one was seen dead
  while (thread_.Pause(kLookAtJobEvery)) {
    pid_t criu;
    {
      absl::MutexLock lock(&mutex_);
      criu = criu_;
    }
    LookAtTree();
    const std::optional<pid_t> dead = criu != 0 ? DeadOf(criu) : std::nullopt;
    if (!dead) patience.reset();
    if (dead && !patience) patience.emplace(kMayGoOn);
    if (!dead || !patience->passed()) continue;
    absl::MutexLock lock(&mutex_);
    SendSignal(criu_pidfd_, SIGKILL);
    ended_for_ = dead;
    return;
  }
}

}  // namespace rekindle::ckpt
