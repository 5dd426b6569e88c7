#include "ckpt/gpu_move.h"

#include <signal.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "gpu_state/cuda_processes.h"

namespace rekindle::ckpt {

absl::Status GpuMove::Begin(const std::string& folder) {
  moved_ = back_ = absl::OkStatus();
  record_ = {};
  may_go_on_ = false;
  stood_still_seconds_ = 0;
  may_be_stopped_ = false;
  auto plugin = gpu::PluginPath();
  if (!plugin.ok() || !gpu::ThreadsAreHeld()) {
    RK_RETURN_IF_ERROR(Lock());
    return MoveOut(nullptr);
  }
  gpu::KeeperListener::Elsewhere criu;
  criu.mounts = namespaces_.enters_mounts();
  if (namespaces_.entered()) criu.number_there = [this](pid_t thread) { return namespaces_.Inside(thread); };
  RK_ASSIGN_OR_RETURN(
      listener_,
      gpu::KeeperListener::Listen(
          folder, std::move(criu), [this](KeeperMoment moment, bool failed, gpu::ThreadKeeper& keeper) {
            absl::Status status = CatchNoMoreThreads([&] { return At(moment, failed, keeper); });
            if (keeper.may_run()) may_be_stopped_ = true;
            if (moment != KeeperMoment::kKeeperDumped) moved_.Update(status);
            return status;
          }));
  variables_ = {listener_->variable()};
  RK_ASSIGN_OR_RETURN(plugins_, namespaces_.PluginFolder(*plugin, folder, &variables_));
  return absl::OkStatus();
}

absl::Status GpuMove::Lock() {
  RK_ASSIGN_OR_RETURN(held_, mover_.Lock(options_.job, options_.pids, options_.lock_timeout));
  stands_still_ = held_->stands_still();
  was_parked_ = held_->was_parked();
  return absl::OkStatus();
}

absl::Status GpuMove::At(KeeperMoment moment, bool failed, gpu::ThreadKeeper& keeper) {
  if (moment == KeeperMoment::kKeeperBegins) {
    Ended("start");
    moved_ = Lock();
    if (moved_.ok() && !held_->can_be_kept()) moved_ = MoveOut(nullptr);
    return moved_;
  }
  if (moment == KeeperMoment::kKeeperFrozen) {
    if (!held_ || held_->is_out()) return moved_;
    Ended("gpu lock");
    moved_ = MoveOut(&keeper);
    const bool is_out = held_ ? held_->is_out() : mover_.AreOut(options_.pids);
    if (!moved_.ok() && is_out) HaveThemStopped(keeper);
    return moved_;
  }
  // CRIU calls it no failure when it was told not to go on.
  const bool good = !failed && may_go_on_;
  if (moment != KeeperMoment::kKeeperDumped || !held_ || (options_.stays_out && good)) {
    return absl::OkStatus();
  }
  NoteEnd(good);
  Back(&keeper);
  if (!back_.ok()) HaveThemStopped(keeper);
  return back_;
}

void GpuMove::HaveThemStopped(gpu::ThreadKeeper& keeper) {
  may_be_stopped_ = true;
  keeper.EndAway();
}

void GpuMove::LetGoOn() {
  if (!std::exchange(may_be_stopped_, false)) return;
  // Those that the plugin takes for users as well. Its signal may not have arrived yet.
  for (pid_t pid : ProcessTree(options_.job)) {
    if (absl::c_linear_search(options_.pids, pid) || gpu::MapsCuda(pid)) ::kill(pid, SIGCONT);
  }
}

absl::Status GpuMove::MoveOut(gpu::ThreadKeeper* keeper) {
  absl::Status status = held_->MoveOut(keeper, options_.progress);
  if (!status.ok()) {
    if (!held_->is_held()) held_.reset();
    return status;
  }
  // CRIU comes next, and wants to trace them.
  if (keeper == nullptr) held_->LetThreadsGo();
  record_ = held_->record();
  device_bytes_ = held_->device_bytes();
  Ended("gpu to host");
  return status;
}

void GpuMove::Back(gpu::ThreadKeeper* keeper) {
  back_ = held_->Back(options_.progress, keeper);
  // CRIU could not run the driver's threads: once more when it has gone.
  if (held_->is_held()) return;
  held_.reset();
  stood_still_seconds_ = stands_still_.seconds();
  Ended("gpu back");
}

absl::Status GpuMove::End(bool good) {
  absl::Status missed;
  if (listener_) missed = listener_->End();
  listener_.reset();
  if (!missed.ok()) may_be_stopped_ = true;
  // CRIU has stopped all of them, and they are to stay so.
  if (good && options_.stays_out) may_be_stopped_ = false;
  if (held_ && may_be_stopped_) {
    // The driver works in threads that run.
    held_->HoldThreads();
    LetGoOn();
  }
  absl::Status ended = Settle(good);
  if (!good) ended.Update(missed);
  // What is parked was parked before, has no room on its GPU, or could go neither out nor back.
  const bool may_be_parked = !held_ && (was_parked_ || !moved_.ok() || !back_.ok());
  if (may_be_parked) mover_.WatchNoted(options_.pids);
  LetGoOn();
  // Those that somebody else had until now, who can do nothing with them while they are stopped.
  if (may_be_parked) mover_.WatchNoted(options_.pids);
  if (!held_ && was_parked_) mover_.WatchParked(options_.pids);
  return ended;
}

absl::Status GpuMove::Settle(bool good) {
  RK_RETURN_IF_ERROR(moved_);
  stood_still_seconds_ = stood_still_seconds_ > 0 ? stood_still_seconds_ : stands_still_.seconds();
  if (good && record_.pids.empty()) {
    return absl::InternalError(
        "CRIU has dumped the job without asking for its device memory: the image would lack it; this CRIU "
        "does not load Rekindle's plugin");
  }
  if (!held_) return absl::OkStatus();
  if (good && options_.stays_out) return absl::OkStatus();
  NoteEnd(good);
  Back(nullptr);
  return absl::OkStatus();
}

void GpuMove::NoteEnd(bool good) {
  if (good) {
    Ended("freeze");
  } else if (options_.left_behind && held_->is_out()) {
    left_behind_ = options_.left_behind();
  }
}

void GpuMove::Ended(const char* phase) const {
  if (options_.ended) options_.ended(phase);
}

}  // namespace rekindle::ckpt
