// Files that say which processes are instances of functions, so that the next daemon can end what one that
// was killed has left running.
#pragma once

#include <sys/types.h>

#include <string>

#include "restore/cgroup.h"

namespace rekindle::daemon {

// The folder of all of those of a store's functions, which one daemon has: others may have the runtime
// folder, too. Its name is short: sockets lie in it.
std::string InstanceRecords(const std::string& runtime_directory, const std::string& store);

// One process. Its file goes with this object.
class InstanceRecord {
 public:
  // `path` ends in ".pid", in a folder that is there. `group`: the process's; null: none of its own. `mark`:
  // by which what it has started is found then (job_members.h). That the file can't be written is logged.
  InstanceRecord(std::string path, pid_t pid, const restore::Cgroup* group, const std::string& mark = "");
  ~InstanceRecord();
  InstanceRecord(const InstanceRecord&) = delete;
  InstanceRecord& operator=(const InstanceRecord&) = delete;

 private:
  const std::string path_;
};

// Ends what the records in `directory` name, with all that is in their cgroups or has their marks.
void EndLeftInstances(const std::string& directory);

}  // namespace rekindle::daemon
