// What /proc/PID/stat says of a process, and what a person would call it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

struct ProcessStat {
  char state = '?';  // R, S, D, T, t, Z, X, I
  pid_t parent = 0, group = 0, session = 0;
  uint64_t flags = 0;    // PF_*
  uint64_t pending = 0;  // signals sent to this thread and not yet taken, bit N - 1 for signal N
  uint32_t threads = 0;
  int exit_status = 0;       // of a zombie, as wait() gives it; 0 also where we may not know
  uint64_t cpu_ticks = 0;    // of all its threads, in user and kernel mode
  uint64_t start_ticks = 0;  // since boot: with the PID it names one process
  int processor = 0;         // on which it, a thread, runs or last ran
  std::string name;          // of its program, at most 15 bytes

  // Nothing of the process runs any more. Its first thread alone stays a zombie for as long as others go on.
  bool ended() const { return state == 'X' || (state == 'Z' && threads <= 1); }
  bool kernel_thread() const { return (flags & 0x00200000) != 0; }
  // A zombie, in the middle of its exit, or killed and about to begin it: it runs no more of its program.
  bool ending() const {
    constexpr uint64_t kExiting = 0x00000004, kKilled = 1u << (9 - 1);
    return state == 'Z' || state == 'X' || (flags & kExiting) != 0 || (pending & kKilled) != 0;
  }
};

// Of a process or a thread. NotFound when there is none; other errors say nothing of that.
absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid);

// The value of "KEY:" in a text like that of /proc/PID/status; empty when it has none.
std::string StatusField(absl::string_view status, absl::string_view key);

// The numbers that a process or thread has in all its PID namespaces, ours first. `task`: "PID" or
// "PID/task/THREAD". Empty when there is none.
std::vector<pid_t> NamespaceNumbers(const std::string& task);

// The process that traces it, in our numbers. `task`: as above. 0: nobody, or it has gone.
pid_t TracerOf(const std::string& task);

// All there are at the moment, threads not included.
std::vector<pid_t> ListProcesses();

// The threads that a process has at the moment, by number. An error: it has ended, or may not be looked at.
absl::StatusOr<std::vector<pid_t>> ThreadsOf(pid_t pid);

// The children of one of its threads, zombies among them, by the kernel's list. One from which a child is
// taken while it is read may lack another. An error: it has ended, or this kernel has no such lists.
absl::StatusOr<std::vector<pid_t>> ChildrenOfThread(pid_t pid, pid_t thread);

enum class Zombies { kLeftOut, kToo };

// Whose children which processes are, at one moment: for who wants the trees of several.
class ProcessChildren {
 public:
  explicit ProcessChildren(Zombies zombies = Zombies::kLeftOut);
  // The process and all its descendants, root first. Empty when it was gone.
  std::vector<pid_t> Tree(pid_t root) const;

 private:
  std::multimap<pid_t, pid_t> children_;
  std::set<pid_t> known_;
};

// Of now. Where the tree is small, nothing is read of the machine's other processes. What is forked meanwhile
// may be missing, whatever else happens in the tree. Root first; empty when it was gone.
std::vector<pid_t> ProcessTree(pid_t root, Zombies zombies = Zombies::kLeftOut);

// Its command line with spaces between the arguments; for one without, such as a zombie, its program's name
// in brackets; empty when there is no such process.
std::string CommandLineOf(pid_t pid);

}  // namespace rekindle
