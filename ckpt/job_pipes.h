// Which ends of its pipes a job has: with both, a pipe comes back as it was, what lies in it included; of one
// that leads to somebody else the other end is not there any more when the job comes back.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <map>
#include <set>
#include <string>

#include "ckpt/job_inspection.h"

namespace rekindle::ckpt {

// Of one job. Not thread-safe.
class JobPipes {
 public:
  // A descriptor of one of its processes, whose link in /proc leads to `pipe`: "pipe:[4711]".
  void Add(pid_t pid, int fd, const std::string& pipe);

  // From how many it reads.
  size_t read() const { return readers_.size(); }

  // Once all its processes were looked at: leaves a name to be replaced by (StdioDescriptor::resource) only
  // to those of its root's descriptors 0, 1 and 2 that are pipes to others. In the place of an output that
  // goes to another process of the job (`exec > >(tee log)`), that one's output is replaced, should it go
  // outside. Where there are such, looks at all processes of the machine.
  void Sort(pid_t root, std::vector<StdioDescriptor>* stdio) const;

 private:
  struct End {
    pid_t pid = 0;  // one that has it, and its descriptor
    int fd = -1;
    std::set<int> outputs;  // 1, 2: as which somebody has it
  };
  // That end of it, by its right.
  bool JobHas(pid_t root, const std::string& pipe, mode_t right) const;
  bool IsInJobAlone(pid_t root, const StdioDescriptor& slot) const;
  // Everybody has closed the other end, which says that this is its end.
  bool HasEnded(const End& end) const;
  // "": none does so.
  std::string OutputToOthers(pid_t root, int fd) const;

  std::map<std::string, End> readers_, writers_;  // by pipe
};

}  // namespace rekindle::ckpt
