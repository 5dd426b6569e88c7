#include "criu/process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/children.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/standstill.h"
#include "base/unique_fd.h"

namespace rekindle::criu {
namespace {

// Waits until processes, dying or dead, that started at `not_before_ticks` or later are reaped; those that
// fell to us (we may be a subreaper) we reap.
void AwaitReaped(const std::vector<pid_t>& pids, uint64_t not_before_ticks) {
  constexpr int kRounds = 2000;  // of 1 ms
  int round = 0;
  for (pid_t pid : pids) {
    for (;; ++round) {
      absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
      if (!facts.ok() || facts->start_ticks < not_before_ticks) break;
      if (facts->parent == ::getpid()) {
        if (IsNotedChild(pid)) break;  // it has got the PID since
        if (::waitpid(pid, nullptr, WNOHANG) == pid) break;
      }
      if (round >= kRounds) return;
      ::usleep(1000);  // nothing tells when somebody else's zombie is reaped
    }
  }
}

struct TreeMember {
  UniqueFd pidfd;  // none where there are no more descriptors
  bool gone = false;

  void Send(pid_t pid, int signal) const {
    if (gone) return;
    if (pidfd.valid()) {
      SendSignal(pidfd.get(), signal);
    } else {
      ::kill(pid, signal);
    }
  }
};

// A set that `who` looks up, and that grows by what they fork. When it returns they have ended. Their PIDs.
std::vector<pid_t> KillAll(const std::function<std::vector<pid_t>()>& who) {
  // Stopped first and killed then: a killed parent's children would be reparented and lost from sight.
  std::map<pid_t, TreeMember> members;
  StopWhileNewOnesCome([&] {
    std::vector<pid_t> fresh;
    for (pid_t pid : who()) {
      const auto [it, is_new] = members.try_emplace(pid);
      if (!is_new) continue;
      TreeMember& member = it->second;
      member.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      member.gone = !member.pidfd.valid() && errno == ESRCH;  // its number may be another's
      member.Send(pid, SIGSTOP);
      if (!member.gone) fresh.push_back(pid);
    }
    return fresh;
  });
  std::erase_if(members, [](const auto& member) { return member.second.gone; });
  for (const auto& [pid, member] : members) member.Send(pid, SIGKILL);
  for (const auto& [pid, member] : members) AwaitExit(member.pidfd.get());
  std::vector<pid_t> pids;
  for (const auto& [pid, member] : members) pids.push_back(pid);
  return pids;
}

struct Subreaping {
  absl::Mutex mutex;
  int users ABSL_GUARDED_BY(mutex) = 0;
  bool ours ABSL_GUARDED_BY(mutex) = false;  // else this process was a subreaper before, and reaps
  ProcessStarts children_before ABSL_GUARDED_BY(mutex);
};

Subreaping& AllSubreaping() {
  static auto& subreaping = *new Subreaping();
  return subreaping;
}

}  // namespace

std::optional<uint64_t> StartTicks(pid_t pid) {
  absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
  if (!facts.ok()) return std::nullopt;
  return facts->start_ticks;
}

TemporarySubreaper::TemporarySubreaper() {
  Subreaping& subreaping = AllSubreaping();
  absl::MutexLock lock(&subreaping.mutex);
  if (subreaping.users++ > 0) return;
  int value = 0;
  subreaping.ours = ::prctl(PR_GET_CHILD_SUBREAPER, &value) != 0 || value == 0;
  if (!subreaping.ours) return;
  subreaping.children_before = ListChildren();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

TemporarySubreaper::~TemporarySubreaper() {
  Subreaping& subreaping = AllSubreaping();
  absl::MutexLock lock(&subreaping.mutex);
  if (--subreaping.users > 0 || !subreaping.ours) return;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ReapStrays(std::exchange(subreaping.children_before, {}));
}

std::vector<pid_t> KillTree(pid_t root, bool reap_root) {
  TemporarySubreaper children_fall_to_us;
  // Zombies keep their numbers, and fall to us.
  const std::vector<pid_t> pids = KillAll([&] {
    std::vector<pid_t> members = ProcessTree(root, Zombies::kToo);
    // It has gone, which KillAll sees; or nobody can be looked at for want of descriptors.
    if (members.empty()) members.push_back(root);
    return members;
  });
  for (pid_t pid : pids) {
    if (pid == root && !reap_root) continue;
    while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
  return pids;
}

void KillRestOfSession(pid_t leader) {
  if (leader <= 0) return;
  TemporarySubreaper children_fall_to_us;
  const std::vector<pid_t> pids = KillAll([&] {
    std::vector<pid_t> members;
    for (pid_t pid : ListProcesses()) {
      if (pid == leader) continue;
      const absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
      if (facts.ok() && facts->session == leader) members.push_back(pid);
    }
    return members;
  });
  for (pid_t pid : pids) ::waitpid(pid, nullptr, __WALL | WNOHANG);
}

void KillRestoredTree(pid_t root, const std::vector<pid_t>& image_pids, uint64_t not_before_ticks) {
  std::vector<pid_t> pids = image_pids;
  absl::StatusOr<ProcessStat> facts = ReadProcessStat(root > 1 ? root : 0);
  if (facts.ok() && facts->parent == ::getpid() && facts->start_ticks >= not_before_ticks) {
    std::vector<pid_t> killed = KillTree(root, /*reap_root=*/true);
    pids.insert(pids.end(), killed.begin(), killed.end());
  }
  AwaitReaped(pids, not_before_ticks);
}

}  // namespace rekindle::criu
