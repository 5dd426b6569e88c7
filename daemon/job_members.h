// The processes that belong to a job that was started as a session of its own, also when its first process
// has died: those of its session, those that carry its mark in their environment, those that were seen as
// its, and their descendants. What left the session and cleaned its environment, whose parents are all gone,
// and which nobody has seen before, is not found. Neither is what carries the mark from an image: a copy in a
// sandbox, another job.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process_stat.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

struct SeenProcess {
  pid_t pid = 0;
  uint64_t start_ticks = 0;

  bool operator==(const SeenProcess&) const = default;
};

struct JobTraits {
  // The PID of its first process, if that number can't be somebody else's by now; else 0.
  pid_t session = 0;
  // "NAME=VALUE" of an environment variable; empty: nothing is found by it. Counts in our PID namespace
  // alone: copies have one of their own.
  std::string mark;
  // Whose processes the mark, or that they were seen, makes the job's; absent: anybody's.
  std::optional<uid_t> user;
  // The first processes of other jobs: what descends from them or is in their session is theirs, whatever
  // mark it carries.
  std::vector<pid_t> others;
  // Descendants of its first process, in this boot.
  std::vector<SeenProcess> seen = {};
};

// The processes of the machine at one moment, zombies left out, so that members of many jobs can be told by
// one reading. Thread-safe.
class ProcessTable {
 public:
  ProcessTable();
  ~ProcessTable();
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  // One that may be a while old: a minute, or longer where there are so many processes that to read it takes
  // more than a thousandth of that. It is read anew for whoever comes first then.
  static std::shared_ptr<const ProcessTable> Recent();

  // Those of the job. They may have ended since, and their numbers be others'.
  std::vector<pid_t> Members(const JobTraits& job) const;
  // Was it there then, and is it still the same?
  bool Has(pid_t pid, const ProcessStat& now) const;

 private:
  struct Process;
  std::map<pid_t, std::unique_ptr<Process>> processes_;
};

// Of now.
std::vector<pid_t> JobMembers(const JobTraits& job);
// With a descriptor of each by which it alone is meant, whose number may be another's by now.
std::map<pid_t, UniqueFd> OpenJobMembers(const JobTraits& job);

// Has one of the descendants of `root` been killed by a signal without its parent having seen it yet? Then
// the job is likely to be in the middle of its end.
bool HasKilledChild(pid_t root);

// SIGTERM to a job's first process, and to the process group that it leads; who is stopped is woken up for
// it.
void TellToEnd(pid_t root);

// Sends each of them SIGKILL, and returns descriptors of them.
std::vector<UniqueFd> SendKillToJobMembers(const JobTraits& job);

// Kills them, and what they start meanwhile, and waits until they have gone (zombies whose parents do not
// reap them count as gone). Returns how many were killed.
size_t KillJobMembers(const JobTraits& job);

}  // namespace rekindle::daemon
