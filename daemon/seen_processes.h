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
  // Writes only where they are others. That it can't is no trouble while we live.
  void Note(std::vector<SeenProcess> processes);
  void Forget();

 private:
  const std::string path_;
  std::vector<SeenProcess> processes_;
};

}  // namespace rekindle::daemon
