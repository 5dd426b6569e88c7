#include "daemon/job_members.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/process_stat.h"

namespace rekindle::daemon {
namespace {

bool HasMark(pid_t pid, absl::string_view mark) {
  absl::StatusOr<std::string> environment = ReadFile(absl::StrCat("/proc/", pid, "/environ"));
  if (!environment.ok()) return false;
  const std::string between = absl::StrCat(std::string(1, '\0'), *environment);
  const std::string wanted = absl::StrCat(std::string(1, '\0'), mark, std::string(1, '\0'));
  return absl::StrContains(between, wanted);
}

}  // namespace

std::vector<pid_t> JobMembers(pid_t session, absl::string_view mark) {
  std::map<pid_t, pid_t> parents;
  std::set<pid_t> members;
  for (const pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.ok() || stat->state == 'Z' || stat->state == 'X' || stat->kernel_thread()) continue;
    parents[pid] = stat->parent;
    if (pid == ::getpid()) continue;
    // A process whose session's leader lies outside our PID namespace has session 0.
    if ((session > 0 && stat->session == session) || HasMark(pid, mark)) members.insert(pid);
  }
  for (bool grown = true; grown;) {
    grown = false;
    for (const auto& [pid, parent] : parents) {
      if (members.count(parent) != 0 && members.insert(pid).second) grown = true;
    }
  }
  return std::vector<pid_t>(members.begin(), members.end());
}

bool HasKilledChild(pid_t root) {
  std::set<pid_t> tree;
  for (const pid_t pid : ProcessTree(root)) tree.insert(pid);
  for (const pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && stat->state == 'Z' && tree.count(stat->parent) != 0 && WIFSIGNALED(stat->exit_status))
      return true;
  }
  return false;
}

std::vector<UniqueFd> SendKillToJobMembers(pid_t session, absl::string_view mark) {
  std::vector<UniqueFd> ending;
  for (const pid_t pid : JobMembers(session, mark)) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd.valid() && SendSignal(pidfd.get(), SIGKILL)) ending.push_back(std::move(pidfd));
  }
  return ending;
}

size_t KillJobMembers(pid_t session, absl::string_view mark) {
  constexpr int kRounds = 20;  // each ends what the one before has seen
  constexpr absl::Duration kPatience = absl::Seconds(10);
  size_t killed = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<UniqueFd> ending = SendKillToJobMembers(session, mark);
    if (ending.empty()) break;
    killed += ending.size();
    for (const UniqueFd& pidfd : ending) AwaitExit(pidfd.get(), kPatience);
  }
  return killed;
}

}  // namespace rekindle::daemon
