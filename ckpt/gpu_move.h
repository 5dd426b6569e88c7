// The device memory of a job that is captured: out when all its threads stand still, back before they go on.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "criu/job_namespaces.h"
#include "gpu_state/job_mover.h"
#include "gpu_state/keeper_client.h"

namespace rekindle::ckpt {

// Thread-compatible; the callbacks come from a thread of its own, while CRIU runs.
class GpuMove {
 public:
  struct Options {
    pid_t job = 0;
    std::vector<pid_t> pids;  // that use CUDA
    absl::Duration lock_timeout;
    bool stays_out = false;                    // after a good dump: the job ends, or goes on later
    std::function<std::string()> left_behind;  // what of the devices is open still; for failures
    gpu::MoveProgress progress;
    std::function<void(const char* phase)> ended;  // "start", "gpu lock", "gpu to host", "freeze", "gpu back"
  };
  // `namespaces`, the job's, outlives this.
  GpuMove(gpu::JobMover& mover, const criu::JobNamespaces& namespaces, Options options)
      : mover_(mover), namespaces_(namespaces), options_(std::move(options)) {}

  // Before each dump: we wait for CRIU in `folder`, its working directory, to lock the job's CUDA calls just
  // before it has all threads stand still. Where our plugin is missing or not wanted they are locked and the
  // memory moves now, and the job's threads run for a moment without it.
  absl::Status Begin(const std::string& folder);
  // For CRIU: its --libdir, and "K=V"; empty where it does not ask.
  const std::string& plugins() const { return plugins_; }
  const std::vector<std::string>& variables() const { return variables_; }
  // What comes before the job's threads go on has been done: else the memory comes back, also where it was to
  // stay out. From any thread.
  void MayGoOn() { may_go_on_ = true; }
  // After each dump, `good` or not: the memory is back, unless it stays out. The first error of a move out.
  absl::Status End(bool good);

  // What happened on the way back: the job may be parked, and the image is good.
  const absl::Status& back() const { return back_; }
  // Of which the memory is out still, or null.
  std::unique_ptr<gpu::HeldJob> Take() { return std::move(held_); }
  const std::string& left_behind() const { return left_behind_; }
  // From the lock on until the memory was back, or to now.
  double stood_still_seconds() const { return stood_still_seconds_; }
  const gpu::GpuRecord& record() const { return record_; }
  uint64_t device_bytes() const { return device_bytes_; }

 private:
  absl::Status Lock();
  absl::Status At(KeeperMoment moment, bool failed, gpu::ThreadKeeper& keeper);
  absl::Status MoveOut(gpu::ThreadKeeper* keeper);
  void Back(gpu::ThreadKeeper* keeper);
  // The threads go on next, and the memory is out: CRIU stops them first, until LetGoOn().
  void HaveThemStopped(gpu::ThreadKeeper& keeper);
  void LetGoOn();
  void NoteEnd(bool good);
  absl::Status Settle(bool good);
  void Ended(const char* phase) const;

  gpu::JobMover& mover_;
  const criu::JobNamespaces& namespaces_;
  const Options options_;
  std::string plugins_;
  std::vector<std::string> variables_;
  std::unique_ptr<gpu::KeeperListener> listener_;
  // Written by the listener's thread until it has ended.
  std::unique_ptr<gpu::HeldJob> held_;
  gpu::GpuRecord record_;
  uint64_t device_bytes_ = 0;
  absl::Status moved_, back_;
  Stopwatch stands_still_;
  double stood_still_seconds_ = 0;
  std::string left_behind_;
  bool was_parked_ = false, may_be_stopped_ = false;
  std::atomic<bool> may_go_on_{false};
};

}  // namespace rekindle::ckpt
