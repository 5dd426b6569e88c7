#include "ckpt/death_watch.h"

#include <signal.h>

#include "base/deadline.h"
#include "base/pidfd.h"
#include "base/process_stat.h"

namespace rekindle::ckpt {
namespace {

// Most dumps have ended by then.
constexpr absl::Duration kLookAtJobEvery = absl::Milliseconds(500);

}  // namespace

DeathWatch::DeathWatch(pid_t root) {
  for (pid_t pid : ProcessTree(root)) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && !stat->ending()) processes_.emplace(pid, stat->start_ticks);
  }
}

absl::Status DeathWatch::Start() {
  return thread_.Start([this] { Run(); });
}

void DeathWatch::Guard(int criu_pidfd) {
  absl::MutexLock lock(&mutex_);
  criu_ = criu_pidfd;
}

std::optional<pid_t> DeathWatch::ended_for() const {
  absl::MutexLock lock(&mutex_);
  return ended_for_;
}

std::optional<pid_t> DeathWatch::FirstDead() const {
  for (const auto& [pid, began] : processes_) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    const bool gone =
        stat.ok() ? stat->start_ticks != began || stat->ending() : absl::IsNotFound(stat.status());
    if (gone) return pid;
  }
  return std::nullopt;
}

void DeathWatch::Run() {
  std::optional<Deadline> patience;  // since one was seen dead
  while (thread_.Pause(kLookAtJobEvery)) {
    const std::optional<pid_t> dead = FirstDead();
    if (dead && !patience) patience.emplace(kMayGoOn);
    if (!dead || !patience->passed()) continue;
    absl::MutexLock lock(&mutex_);
    if (criu_ < 0) continue;
    SendSignal(criu_, SIGKILL);
    ended_for_ = dead;
    return;
  }
}

}  // namespace rekindle::ckpt
