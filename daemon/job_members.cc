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
#include "base/pid_namespace.h"
#include "base/pidfd.h"
#include "base/proc_text.h"
#include "base/process_stat.h"

namespace rekindle::daemon {
namespace {

// By its real user: a set-uid program is still his who started it.
bool IsOfUser(pid_t pid, uid_t user) {
  absl::StatusOr<std::string> status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  if (!status.ok()) return false;
  const std::string wanted = absl::StrCat("\nUid:\t", user, "\t");
  return absl::StrContains(*status, wanted);
}

bool CarriesMark(pid_t pid, const JobTraits& job) {
  if (job.mark.empty()) return false;
  // Last of all its environment, to read which it must be let into its memory: a stranger may hang with the
  // lock of that held.
  if ((job.user && !IsOfUser(pid, *job.user)) || !IsInOurPidNamespace(pid).value_or(false)) return false;
  // The most that the kernel gives to a program that begins; later the process may make it longer.
  constexpr size_t kMostBytes = 6 << 20;
  const std::string between = absl::StrCat(
      std::string(1, '\0'), BeginningOfFile(absl::StrCat("/proc/", pid, "/environ"), kMostBytes));
  return absl::StrContains(between, absl::StrCat(std::string(1, '\0'), job.mark, std::string(1, '\0')));
}

bool WasSeen(const std::map<pid_t, uint64_t>& seen, pid_t pid, const ProcessStat& stat,
             const JobTraits& job) {
  const auto it = seen.find(pid);
  return it != seen.end() && it->second == stat.start_ticks && (!job.user || IsOfUser(pid, *job.user));
}

void AddDescendants(const std::map<pid_t, pid_t>& parents, std::set<pid_t>* pids) {
  for (bool grown = true; grown;) {
    grown = false;
    for (const auto& [pid, parent] : parents) {
      if (pids->count(parent) != 0 && pids->insert(pid).second) grown = true;
    }
  }
}

}  // namespace

std::vector<pid_t> JobMembers(const JobTraits& job) {
  std::map<pid_t, pid_t> parents;
  std::set<pid_t> members, marked;
  const std::set<pid_t> others(job.others.begin(), job.others.end());
  std::map<pid_t, uint64_t> seen;
  for (const SeenProcess& process : job.seen) seen[process.pid] = process.start_ticks;
  std::set<pid_t> theirs = others;
  for (const pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.ok() || stat->ended() || stat->kernel_thread()) continue;
    parents[pid] = stat->parent;
    if (pid == ::getpid()) continue;
    // A process whose session's leader lies outside our PID namespace has session 0.
    if (job.session > 0 && stat->session == job.session) {
      members.insert(pid);
    } else if (others.count(stat->session) != 0) {
      theirs.insert(pid);
    } else if (WasSeen(seen, pid, *stat, job) || CarriesMark(pid, job)) {
      marked.insert(pid);
    }
  }
  AddDescendants(parents, &theirs);
  for (const pid_t pid : marked) {
    if (theirs.count(pid) == 0) members.insert(pid);
  }
  AddDescendants(parents, &members);
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

void TellToEnd(pid_t root) {
  const pid_t whom = ::getpgid(root) == root ? -root : root;
  ::kill(whom, SIGTERM);
  ::kill(whom, SIGCONT);
}

std::vector<UniqueFd> SendKillToJobMembers(const JobTraits& job) {
  std::vector<UniqueFd> ending;
  for (const pid_t pid : JobMembers(job)) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd.valid() && SendSignal(pidfd.get(), SIGKILL)) ending.push_back(std::move(pidfd));
  }
  return ending;
}

size_t KillJobMembers(const JobTraits& job) {
  constexpr int kRounds = 20;  // each ends what the one before has seen
  constexpr absl::Duration kPatience = absl::Seconds(10);
  size_t killed = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<UniqueFd> ending = SendKillToJobMembers(job);
    if (ending.empty()) break;
    killed += ending.size();
    for (const UniqueFd& pidfd : ending) AwaitExit(pidfd.get(), kPatience);
  }
  return killed;
}

}  // namespace rekindle::daemon
