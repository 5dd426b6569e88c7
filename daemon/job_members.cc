#include "daemon/job_members.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/pid_namespace.h"
#include "base/pidfd.h"
#include "base/proc_text.h"
#include "base/process_stat.h"
#include "base/timeline.h"

namespace rekindle::daemon {
namespace {

// Whoever marks processes begins so.
constexpr absl::string_view kOurVariables = "REKINDLE_";
constexpr absl::Duration kRecent = absl::Seconds(60);
constexpr int kRestsAfterReading = 1000;

// By its real user: a set-uid program is still his who started it.
bool IsOfUser(pid_t pid, uid_t user) {
  absl::StatusOr<std::string> status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  if (!status.ok()) return false;
  const std::string wanted = absl::StrCat("\nUid:\t", user, "\t");
  return absl::StrContains(*status, wanted);
}

std::vector<std::string> OurVariablesOf(pid_t pid) {
  std::vector<std::string> ours;
  const std::string environment = EnvironmentOf(pid);
  for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(variable, kOurVariables)) ours.emplace_back(variable);
  }
  return ours;
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

struct ProcessTable::Process {
  explicit Process(ProcessStat read) : stat(std::move(read)) {}

  // What is asked of few of them is read when it is asked, and once for each answer.
  bool IsOf(pid_t pid, const std::optional<uid_t>& user) const {
    if (!user) return true;
    absl::MutexLock lock(&mutex);
    const auto [answer, is_new] = of_users.try_emplace(*user, false);
    if (is_new) answer->second = IsOfUser(pid, *user);
    return answer->second;
  }
  bool Carries(pid_t pid, const JobTraits& job) const {
    if (job.mark.empty()) return false;
    // Last of all its environment, to read which it must be let into its memory: a stranger may hang with the
    // lock of that held.
    if (!IsOf(pid, job.user) || !IsInOurPidNamespace(pid).value_or(false)) return false;
    absl::MutexLock lock(&mutex);
    if (!variables) variables = OurVariablesOf(pid);
    return std::find(variables->begin(), variables->end(), job.mark) != variables->end();
  }
  bool WasSeen(pid_t pid, const std::map<pid_t, uint64_t>& seen, const JobTraits& job) const {
    const auto it = seen.find(pid);
    return it != seen.end() && it->second == stat.start_ticks && IsOf(pid, job.user);
  }

  const ProcessStat stat;
  mutable absl::Mutex mutex;
  mutable std::map<uid_t, bool> of_users ABSL_GUARDED_BY(mutex);
  mutable std::optional<std::vector<std::string>> variables ABSL_GUARDED_BY(mutex);
};

ProcessTable::ProcessTable() {
  for (const pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.ok() || stat->ended() || stat->kernel_thread()) continue;
    processes_.emplace(pid, std::make_unique<Process>(*std::move(stat)));
  }
}

ProcessTable::~ProcessTable() = default;

std::shared_ptr<const ProcessTable> ProcessTable::Recent() {
  static absl::Mutex mutex(absl::kConstInit);
  static auto& newest = *new std::shared_ptr<const ProcessTable>();
  static double read_again_at = 0;
  absl::MutexLock lock(&mutex);
  const double now = MonotonicSeconds();
  if (newest != nullptr && now < read_again_at) return newest;
  newest = std::make_shared<const ProcessTable>();
  read_again_at =
      now + std::max(absl::ToDoubleSeconds(kRecent), kRestsAfterReading * (MonotonicSeconds() - now));
  return newest;
}

bool ProcessTable::Has(pid_t pid, const ProcessStat& now) const {
  const auto it = processes_.find(pid);
  return it != processes_.end() && it->second->stat.start_ticks == now.start_ticks;
}

std::vector<pid_t> ProcessTable::Members(const JobTraits& job) const {
  std::map<pid_t, pid_t> parents;
  std::set<pid_t> members, marked;
  const std::set<pid_t> others(job.others.begin(), job.others.end());
  std::map<pid_t, uint64_t> seen;
  for (const SeenProcess& process : job.seen) seen[process.pid] = process.start_ticks;
  std::set<pid_t> theirs = others;
  for (const auto& [pid, process] : processes_) {
    parents[pid] = process->stat.parent;
    if (pid == ::getpid()) continue;
    // A process whose session's leader lies outside our PID namespace has session 0.
    if (job.session > 0 && process->stat.session == job.session) {
      members.insert(pid);
    } else if (others.count(process->stat.session) != 0) {
      theirs.insert(pid);
    } else if (process->WasSeen(pid, seen, job) || process->Carries(pid, job)) {
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

std::vector<pid_t> JobMembers(const JobTraits& job) { return ProcessTable().Members(job); }

std::map<pid_t, UniqueFd> OpenJobMembers(const JobTraits& job) {
  const ProcessTable table;
  std::map<pid_t, UniqueFd> members;
  for (const pid_t pid : table.Members(job)) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) continue;
    // Whoever has the number once it is open is whom it means.
    const absl::StatusOr<ProcessStat> now = ReadProcessStat(pid);
    if (now.ok() && table.Has(pid, *now)) members.emplace(pid, std::move(pidfd));
  }
  return members;
}

namespace {

bool WasKilled(const absl::StatusOr<ProcessStat>& stat) {
  return stat.ok() && stat->state == 'Z' && WIFSIGNALED(stat->exit_status);
}

// By the kernel's lists of children, which have those that nobody has seen end: a job is asked about at each
// of its images, and of a machine's processes few are its. Nothing: there are no such lists, or so many of
// them that all processes are looked at sooner.
std::optional<bool> HasKilledChildIn(const std::vector<pid_t>& tree) {
  struct stat all = {};
  if (::stat("/proc", &all) != 0) return std::nullopt;
  size_t left = all.st_nlink;  // about as many as there are processes
  for (const pid_t pid : tree) {
    const auto threads = ThreadsOf(pid);
    if (!threads.ok()) continue;  // it has ended
    for (const pid_t thread : *threads) {
      if (left-- == 0) return std::nullopt;
      const absl::StatusOr<std::vector<pid_t>> children = ChildrenOfThread(pid, thread);
      if (!children.ok() && ThreadsOf(pid).ok()) return std::nullopt;
      for (const pid_t child : children.value_or(std::vector<pid_t>())) {
        if (WasKilled(ReadProcessStat(child))) return true;
      }
    }
  }
  return false;
}

}  // namespace

bool HasKilledChild(pid_t root) {
  const std::vector<pid_t> tree = ProcessTree(root);
  if (const std::optional<bool> has = HasKilledChildIn(tree)) return *has;
  const std::set<pid_t> parents(tree.begin(), tree.end());
  for (const pid_t pid : ListProcesses()) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (WasKilled(stat) && parents.contains(stat->parent)) return true;
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
  for (auto& [pid, pidfd] : OpenJobMembers(job)) {
    if (SendSignal(pidfd.get(), SIGKILL)) ending.push_back(std::move(pidfd));
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
