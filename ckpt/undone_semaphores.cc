#include "ckpt/undone_semaphores.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

struct SemaphoreSet {
  int key = 0, id = 0;
  int semaphores = 0;
};

// Of the IPC namespace that this thread is in.
std::vector<SemaphoreSet> SemaphoreSets() {
  std::vector<SemaphoreSet> sets;
  const auto table = ReadFile("/proc/sysvipc/sem");
  // key semid perms nsems …
  for (const absl::string_view line : absl::StrSplit(table.value_or(""), '\n')) {
    const std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    SemaphoreSet set;
    if (f.size() >= 4 && absl::SimpleAtoi(f[0], &set.key) && absl::SimpleAtoi(f[1], &set.id) &&
        absl::SimpleAtoi(f[3], &set.semaphores)) {
      sets.push_back(set);
    }
  }
  return sets;
}

// Has the kernel a list of what it will undo at its end? This thread must have none. Whoever has made a
// thread has one, if an empty one.
bool MayHaveUndo(pid_t pid) { return ::syscall(SYS_kcmp, ::gettid(), pid, KCMP_SYSVSEM, 0, 0) > 0; }

bool HasThreads(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  return !stat.ok() || stat->threads > 1;
}

// PHP's sem_get() makes three: the lock, how many have it open, and one that is 0 but for a moment.
bool MayBeALock(const SemaphoreSet& set, int index) { return set.semaphores != 3 || index != 2; }

std::string Describe(const SemaphoreSet& set, int index) {
  return absl::StrCat("semaphore ", index, " of the System V set with key 0x", absl::Hex(set.key), ", id ",
                      set.id);
}

absl::Status LookAtSets(absl::Span<const pid_t> pids, std::vector<std::string>* warnings) {
  const std::vector<SemaphoreSet> sets = SemaphoreSets();
  if (sets.empty()) return absl::OkStatus();
  std::set<pid_t> undo;
  std::copy_if(pids.begin(), pids.end(), std::inserter(undo, undo.end()), MayHaveUndo);
  if (undo.empty()) return absl::OkStatus();
  std::map<pid_t, std::string> changed;  // by process, the first semaphore
  for (const SemaphoreSet& set : sets) {
    for (int index = 0; index < set.semaphores; ++index) {
      const pid_t last = ::semctl(set.id, index, GETPID);
      if (last < 0) break;  // it has gone, or is not ours to read
      if (!undo.contains(last)) continue;
      const int value = ::semctl(set.id, index, GETVAL);
      if (value == 0 && MayBeALock(set, index) && !HasThreads(last)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "capturing process ", last, ": it was the last to change ", Describe(set, index),
            ", which is 0, and seems to hold it as a lock that the kernel gives back when it ends (SEM_UNDO: "
            "PHP's sem_acquire(), Apache's sysvsem). CRIU can't save that: others would get the lock while "
            "the restored job believes to hold it. The job goes on; try again when it has released the lock, "
            "or have it use another kind (flock(), fcntl(), a mutex that is robust). Where it holds none, "
            "another process may set the semaphore to what it is"));
      }
      // 0 in a process with threads may be one that merely waits.
      changed.emplace(last, absl::StrCat(Describe(set, index), " (now ", value, ")"));
    }
  }
  for (const auto& [pid, semaphore] : changed) {
    warnings->push_back(absl::StrCat(
        "process ", pid, " was the last to change ", semaphore,
        "; if it uses it with SEM_UNDO, and has something of it at this moment, the semaphore will be wrong "
        "after a restore: the kernel gives that back when the job ends, and does not when the restored one "
        "does (docs/compatibility.md)"));
  }
  return absl::OkStatus();
}

}  // namespace

bool SeesSemaphores(pid_t pid) {
  return !IsSameFile(absl::StrCat("/proc/", pid, "/ns/ipc"), "/proc/self/ns/ipc") || !SemaphoreSets().empty();
}

absl::Status CheckNoHeldSemaphore(absl::Span<const pid_t> pids, std::vector<std::string>* warnings) {
  if (pids.empty()) return absl::OkStatus();
  const std::string theirs = absl::StrCat("/proc/", pids.front(), "/ns/ipc");
  const bool is_ours = IsSameFile(theirs, "/proc/self/ns/ipc");
  const UniqueFd space(::open(theirs.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space.valid()) return absl::OkStatus();  // it has ended
  return CatchNoMoreThreads([&] {
    absl::Status status;
    // A thread goes in alone, and has no list of its own to undo from then on.
    std::thread([&] {
      const int gone = is_ours ? ::unshare(CLONE_SYSVSEM) : ::setns(space.get(), CLONE_NEWIPC);
      if (gone == 0) status = LookAtSets(pids, warnings);
    }).join();
    return status;
  });
}

}  // namespace rekindle::ckpt
