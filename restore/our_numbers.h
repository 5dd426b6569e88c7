// A job that comes back in another PID namespace: what the image says by the numbers of that one, in ours.
#pragma once

#include <sys/types.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "criu/image_files.h"
#include "criu/job_namespaces.h"
#include "gpu_state/job_mover.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/withheld_pages.h"

namespace rekindle::restore {

// Of processes and threads, theirs to ours. Empty: the namespace is ours.
class OurNumbers {
 public:
  OurNumbers() = default;
  explicit OurNumbers(const std::vector<std::pair<pid_t, pid_t>>& all)
      : of_theirs_(all.begin(), all.end()), elsewhere_(true) {}

  // 0: there is none.
  pid_t Of(pid_t theirs) const;

 private:
  std::map<pid_t, pid_t> of_theirs_;
  bool elsewhere_ = false;
};

// The threads' numbers in it (`placements`, `manners`).
v1::JobManifest InOurNumbers(v1::JobManifest manifest, const OurNumbers& numbers);
std::vector<criu::PstreeEntry> InOurNumbers(std::vector<criu::PstreeEntry> tree, const OurNumbers& numbers);
gpu::GpuRecord InOurNumbers(gpu::GpuRecord record, const OurNumbers& numbers);
std::vector<WithheldTask> InOurNumbers(std::vector<WithheldTask> tasks, const OurNumbers& numbers);

// CheckIdsAreFree (compatibility.h) in a container. Nobody is waited for.
absl::Status CheckIdsAreFreeIn(const criu::JobNamespaces& namespaces,
                               const std::vector<criu::PstreeEntry>& tree);

}  // namespace rekindle::restore
