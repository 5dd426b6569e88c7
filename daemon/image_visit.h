// An image that a call takes of a job which this process supervises: it is of a moment of the job's choice,
// as those that its supervisor takes are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "ckpt/capture.h"
#include "daemon/supervised_job.h"

namespace rekindle::daemon {

// For one capture, which it has to outlive.
class ImageVisit final : public ckpt::CaptureGate {
 public:
  // `cancelled` outlives it: the caller wants no image any more.
  ImageVisit(std::shared_ptr<SupervisedJob> job, const std::atomic<bool>& cancelled)
      : job_(std::move(job)), cancelled_(cancelled) {}
  ~ImageVisit() override { job_->EndVisit(number_, stored_); }

  absl::Status BeforeFreeze() override { return job_->BeginVisit(cancelled_, &number_); }
  void StandsStill() override { job_->KeepItsFilesMeanwhile(); }
  // Its memory is ours: the job goes on while the image is stored.
  absl::Status OnFrozen() override {
    job_->AwaitItsFilesKept();
    job_->VisitIsFrozen(number_);
    return absl::OkStatus();
  }
  absl::Status BeforeCommit() override { return absl::OkStatus(); }

  void OnStored() { stored_ = true; }

 private:
  const std::shared_ptr<SupervisedJob> job_;
  const std::atomic<bool>& cancelled_;
  uint64_t number_ = 0;
  bool stored_ = false;
};

}  // namespace rekindle::daemon
