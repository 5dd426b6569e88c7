// A job whose image is there, or about to be, and which stands still until somebody knows whether it is to
// end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/capture_session.h"
#include "ckpt/job_inspection.h"
#include "gpu_state/job_mover.h"

namespace rekindle::ckpt {

// It goes on when this goes, and when the process that has this dies (RecoverInterruptedCaptures). Nobody
// else captures it meanwhile. Thread-compatible.
class StandingJob {
 public:
  // `gpu`: its device memory, which is in host memory; null: it has none.
  StandingJob(std::vector<ProcessInfo> processes, std::unique_ptr<gpu::HeldJob> gpu,
              std::unique_ptr<CaptureSession> session);
  ~StandingJob();

  // All of it is killed. Returns when it is gone, after a minute at the latest.
  void End();
  // An error: it runs, and its GPU state has not come back; it is parked, and its data is safe.
  absl::Status GoOn();

 private:
  const std::vector<ProcessInfo> processes_;
  std::unique_ptr<gpu::HeldJob> gpu_;
  std::unique_ptr<CaptureSession> session_;  // null: it has been settled
};

// Kills the job that a capture called `job_id` (JobId), if it still lives on this machine, and waits for its
// end. OK as well when there is none any more.
absl::Status EndJob(const std::string& job_id);

// Lets that job go on if the runtime hook holds it (held_job.h), if it still lives on this machine. OK as
// well when there is none, or nothing holds it.
absl::Status LetHeldJobGoOn(const std::string& job_id);

}  // namespace rekindle::ckpt
