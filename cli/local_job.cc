#include "cli/local_job.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/exit_events.h"
#include "base/machine.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"

namespace rekindle::cli {
namespace {

// linux/pidfd.h of 6.9.
constexpr unsigned kPidfdSignalProcessGroup = 1u << 2;

bool NumbersMeanTheSame(const v1::ProcessIdentity& process) {
  const std::string boot = ThisBootId();
  struct stat ours;
  return !boot.empty() && boot == process.boot_id() && ::stat("/proc/self/ns/pid", &ours) == 0 &&
         ours.st_ino == process.pid_namespace();
}

}  // namespace

std::shared_ptr<const LocalJob> LocalJob::Find(const v1::JobStarted& started) {
  if (!started.has_process() || !NumbersMeanTheSame(started.process())) return nullptr;
  const pid_t pid = started.job().pid();
  absl::StatusOr<UniqueFd> pidfd = OpenProcess(pid);
  // What was opened is what has the number now.
  if (!pidfd.ok()) return nullptr;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat.ok() || !IsSameStart(stat->start_ticks, started.process().start_ticks())) return nullptr;
  return std::shared_ptr<const LocalJob>(new LocalJob(pid, *std::move(pidfd)));
}

bool LocalJob::Signal(int signal) const {
  if (::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, kPidfdSignalProcessGroup) == 0)
    return true;
  // A kernel that can't: the number is the job's own as long as it is there.
  if (errno == EINVAL && SendSignal(pidfd_.get(), 0) && ::getpgid(pid_) == pid_)
    return ::kill(-pid_, signal) == 0;
  return SendSignal(pidfd_.get(), signal);
}

std::optional<ExitState> LocalJob::AwaitEnd() const {
  std::unique_ptr<ExitEvents> events;
  if (!ExitEvents::PidfdsTell()) {
    auto listening = ExitEvents::Listen();
    if (listening.ok() && (*listening)->Expect(pid_).ok()) events = *std::move(listening);
  }
  AwaitExit(pidfd_.get());
  const std::optional<ExitState> told = events ? events->Take(pid_) : std::nullopt;
  return told ? told : ExitOfEnded(pidfd_.get());
}

}  // namespace rekindle::cli
