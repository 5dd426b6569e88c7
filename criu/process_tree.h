// Taking down a tree of processes that a restore has made.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace rekindle::criu {

// When the process started, in clock ticks since boot; nothing when there is no such process.
std::optional<uint64_t> StartTicks(pid_t pid);

// Kills `root`, a child of this process, and everything below it, also what they fork meanwhile. When it
// returns they have ended and been reaped; `root` only if `reap_root` (else somebody else is to take its exit
// status). Their PIDs.
std::vector<pid_t> KillTree(pid_t root, bool reap_root);

// Kills what is left of a session whose leader, a child of this process, has ended and is not reaped, so that
// its number means no other session. When it returns they have ended, and those that fell to us are reaped.
void KillRestOfSession(pid_t leader);

// Kills and reaps what a restore has made: `root` and all its descendants, if `root` is a child of this
// process (living or a zombie) that started at `not_before_ticks` or later; a process that merely has the PID
// is safe. `image_pids` are the PIDs of the image: those of them that are as new (CRIU has killed them, then)
// are waited for until whoever inherited them has reaped them, at most 2 s, because a zombie keeps its PID
// from the next restore.
void KillRestoredTree(pid_t root, const std::vector<pid_t>& image_pids, uint64_t not_before_ticks);

// While one exists orphaned descendants of this process become its children (unless they did before), so that
// what a failed restore leaves can be reaped here at once. Process-wide, so that orphans of other jobs come
// too: those are reaped when they end. Keep it short.
class TemporarySubreaper {
 public:
  TemporarySubreaper();
  ~TemporarySubreaper();
  TemporarySubreaper(const TemporarySubreaper&) = delete;
  TemporarySubreaper& operator=(const TemporarySubreaper&) = delete;
};

}  // namespace rekindle::criu
