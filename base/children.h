// Which children of this process somebody waits for, so that orphans that fell to it (a subreaper, or the
// first of its PID namespace) can be told from them and be reaped. All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <utility>

namespace rekindle {

// Whoever makes a child of this process has one of these from before it exists until it is noted: without a
// note a child that is seen meanwhile belongs to nobody.
class MakingChild {
 public:
  MakingChild();
  ~MakingChild();
  MakingChild(const MakingChild&) = delete;
  MakingChild& operator=(const MakingChild&) = delete;

 private:
  uint64_t number_;
};

// Somebody reaps this child. Nothing has to be said when that is done.
void NoteChild(pid_t pid);
bool IsNotedChild(pid_t pid);

// By PID and start: a PID alone may name another process by the time that it is looked at.
using ProcessStarts = std::set<std::pair<pid_t, uint64_t>>;
ProcessStarts ListChildren();

// Reaps, now or when they end, the children of this process that are not in `before`, that nobody has noted,
// and that nobody is just making. Does not wait.
void ReapStrays(const ProcessStarts& before);

// Is there a child that nobody has noted and that is not waited for as a stray? Cheap; wrong where the number
// of a child that was noted has become another's.
bool MayHaveStrays();

}  // namespace rekindle
