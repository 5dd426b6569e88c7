#include "ckpt/standing_job.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "ckpt/held_job.h"

namespace rekindle::ckpt {

StandingJob::StandingJob(std::vector<ProcessInfo> processes, std::unique_ptr<gpu::HeldJob> gpu,
                         std::unique_ptr<CaptureSession> session)
    : processes_(std::move(processes)), gpu_(std::move(gpu)), session_(std::move(session)) {}

StandingJob::~StandingJob() {
  if (absl::Status status = GoOn(); !status.ok()) Log(LogLevel::kError, status.message());
}

void StandingJob::End() {
  if (session_ == nullptr) return;
  if (absl::Status ended = KillTree(processes_); !ended.ok()) {
    Log(LogLevel::kError, absl::StrCat("the job of process ", processes_.front().pid,
                                       " has an image and was to end: ", ended.message()));
  }
  if (gpu_ != nullptr) gpu_->JobEnded();
  gpu_.reset();
  session_.reset();
}

absl::Status StandingJob::GoOn() {
  if (session_ == nullptr) return absl::OkStatus();
  absl::Status back = ResumeTree(processes_, [this](const std::vector<pid_t>&) {
                        if (gpu_ != nullptr) gpu_->HoldThreads();
                      }).status();
  if (gpu_ != nullptr) back.Update(gpu_->Back());
  gpu_.reset();
  session_.reset();
  return back;
}

namespace {

// Its first process; nothing: it does not live here.
absl::StatusOr<std::optional<ProcessInfo>> RootOf(const std::string& job_id) {
  const std::vector<std::string> parts = absl::StrSplit(job_id, '/');
  pid_t pid = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &pid)) {
    return absl::InvalidArgumentError(absl::StrCat("'", job_id, "' names no job"));
  }
  RK_ASSIGN_OR_RETURN(const Machine machine, ThisMachine());
  absl::StatusOr<ProcessInfo> root = ReadProcess(pid);
  if (absl::IsNotFound(root.status())) return std::nullopt;
  RK_RETURN_IF_ERROR(root.status());
  if (JobId(machine.boot_id, *root) != job_id) return std::nullopt;
  return *std::move(root);
}

}  // namespace

absl::Status EndJob(const std::string& job_id) {
  RK_ASSIGN_OR_RETURN(std::optional<ProcessInfo> root, RootOf(job_id));
  return root ? KillTree({*std::move(root)}) : absl::OkStatus();
}

absl::Status LetHeldJobGoOn(const std::string& job_id) {
  RK_ASSIGN_OR_RETURN(const std::optional<ProcessInfo> root, RootOf(job_id));
  if (!root) return absl::OkStatus();
  for (const pid_t pid : ProcessTree(root->pid)) {
    if (!IsHeld(pid)) continue;
    // What it has forked has the same channel.
    const absl::Status let = LetHeldJobGoOn(pid);
    return absl::IsNotFound(let) ? absl::OkStatus() : let;
  }
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
