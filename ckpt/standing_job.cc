#include "ckpt/standing_job.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/status.h"

namespace rekindle::ckpt {

StandingJob::StandingJob(std::vector<ProcessInfo> processes, std::unique_ptr<gpu::HeldJob> gpu,
                         std::unique_ptr<CaptureSession> session)
    : processes_(std::move(processes)), gpu_(std::move(gpu)), session_(std::move(session)) {}

StandingJob::~StandingJob() {
  if (absl::Status status = GoOn(); !status.ok()) Log(LogLevel::kError, status.message());
}

void StandingJob::End() {
  if (session_ == nullptr) return;
  KillTree(processes_);
  if (gpu_ != nullptr) gpu_->JobEnded();
  gpu_.reset();
  session_.reset();
}

absl::Status StandingJob::GoOn() {
  if (session_ == nullptr) return absl::OkStatus();
  ResumeTree(processes_, [this](const std::vector<pid_t>&) {
    if (gpu_ != nullptr) gpu_->HoldThreads();
  });
  const absl::Status back = gpu_ == nullptr ? absl::OkStatus() : gpu_->Back();
  gpu_.reset();
  session_.reset();
  return back;
}

absl::Status EndJob(const std::string& job_id) {
  const std::vector<std::string> parts = absl::StrSplit(job_id, '/');
  pid_t pid = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &pid)) {
    return absl::InvalidArgumentError(absl::StrCat("'", job_id, "' names no job"));
  }
  RK_ASSIGN_OR_RETURN(const Machine machine, ThisMachine());
  absl::StatusOr<ProcessInfo> root = ReadProcess(pid);
  if (absl::IsNotFound(root.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(root.status());
  if (JobId(machine.boot_id, *root) == job_id) KillTree({*std::move(root)});
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
