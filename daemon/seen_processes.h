// Which processes a job had when it was last looked at, in a file of the runtime folder: whoever takes the
// job over, after its end even, knows those that nothing else tells of any more.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/job_members.h"

namespace rekindle::daemon {

// For one thread.
class SeenProcesses {
 public:
  // `mark`: of the job (job_mark.h).
  SeenProcesses(absl::string_view runtime_directory, absl::string_view mark);

  // Of this boot.
  const std::vector<SeenProcess>& processes() const { return processes_; }
  // Writes only where they are others, or could not be written the last time. That it can't is no trouble
  // while we live, and said in the log.
  void Note(std::vector<SeenProcess> processes);
  void Forget();

 private:
  const std::string path_;
  std::vector<SeenProcess> processes_;
  bool written_ = true;  // what is there is what it should be
};

}  // namespace rekindle::daemon
