#include "ckpt/death_watch.h"

#include <signal.h>
#include <sys/syscall.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "ckpt/give_up.h"
#include "ckpt/kernel_workers.h"

namespace rekindle::ckpt {
namespace {

// Most dumps have ended by then.
constexpr absl::Duration kLookAtJobEvery = absl::Milliseconds(500);
// After a cancel. With what CRIU may still wait for a task (give_up.h) less than a minute.
constexpr absl::Duration kCancelMayTake = absl::Seconds(45);

// For whom it waits alone, in the numbers of its namespace. Nothing: for nobody, and as long as it goes on
// with others it is left alone, since to end it in the middle of that could harm them. 0: the kernel does not
// tell.
std::optional<pid_t> AwaitedBy(pid_t criu) {
  const absl::StatusOr<std::string> call = ReadFile(absl::StrCat("/proc/", criu, "/syscall"));
  if (!call.ok()) return 0;
  const std::vector<std::string> words = absl::StrSplit(*call, ' ');
  uint64_t whom = 0;
  if (words.size() < 2 || words[0] != absl::StrCat(SYS_wait4) || !absl::SimpleHexAtoi(words[1], &whom))
    return std::nullopt;
  const auto pid = static_cast<pid_t>(whom);
  return pid > 0 ? std::optional(pid) : std::nullopt;
}

bool HasThread(pid_t dead, pid_t number) {
  const absl::StatusOr<std::vector<std::string>> threads =
      ListDirectory(absl::StrCat("/proc/", dead, "/task"));
  return threads.ok() && absl::c_any_of(*threads, [&](const std::string& thread) {
           return absl::c_linear_search(NamespaceNumbers(absl::StrCat(dead, "/task/", thread)), number);
         });
}

// Whom `criu` has to wait for: of a dead one that it has seized somebody else may not take the exit status.
// Not looked for in the job's tree: whose parent has been killed with it has left that.
std::optional<pid_t> DeadOf(pid_t criu, std::optional<pid_t> awaited) {
  if (!awaited) return std::nullopt;  // as nearly always: then all processes need not be looked at
  for (const pid_t pid : ListProcesses()) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && stat->ending() && TracerOf(absl::StrCat(pid)) == criu &&
        (*awaited == 0 || HasThread(pid, *awaited)))
      return pid;
  }
  return std::nullopt;
}

// Otherwise the signal would end it.
bool HandlesGiveUp(pid_t criu) {
  const absl::StatusOr<std::string> status = ReadFile(absl::StrCat("/proc/", criu, "/status"));
  uint64_t handled = 0;
  return status.ok() && absl::SimpleHexAtoi(StatusField(*status, "SigCgt"), &handled) &&
         (handled >> (GIVE_UP_SIGNAL - 1) & 1) != 0;
}

}  // namespace

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

bool DeathWatch::met_kernel_worker() const {
  absl::MutexLock lock(&mutex_);
  return met_kernel_worker_;
}

void DeathWatch::Run() {
  std::optional<pid_t> waited_for;
  std::optional<Deadline> patience;  // since then
  std::optional<Deadline> letting_go;
  while (thread_.Pause(kLookAtJobEvery)) {
    pid_t criu;
    {
      absl::MutexLock lock(&mutex_);
      criu = criu_;
    }
    const std::optional<pid_t> awaited = criu != 0 ? AwaitedBy(criu) : std::nullopt;
    const bool cancelled = cancel_ != nullptr && cancel_->load();
    if (cancelled && !letting_go) letting_go.emplace(kCancelMayTake);
    const bool stuck = awaited.value_or(0) != 0 && IsKernelWorkerOf(criu, *awaited);
    if (criu != 0 && (stuck || (letting_go && letting_go->passed())) && HandlesGiveUp(criu)) {
      absl::MutexLock lock(&mutex_);
      met_kernel_worker_ |= stuck;
      SendSignal(criu_pidfd_, GIVE_UP_SIGNAL);
    }
    const std::optional<pid_t> dead = DeadOf(criu, awaited);
    if (dead && dead != waited_for) patience.emplace(kMayGoOn);
    waited_for = dead;
    if (!dead || !patience->passed()) continue;
    absl::MutexLock lock(&mutex_);
    SendSignal(criu_pidfd_, SIGKILL);
    ended_for_ = dead;
    return;
  }
}

}  // namespace rekindle::ckpt
