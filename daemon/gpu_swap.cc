#include "daemon/gpu_swap.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// What became of putting `job` back to where it was, for an error's text.
std::string AsItWas(pid_t job, const absl::Status& back) {
  if (back.ok()) return absl::StrCat(" (process ", job, " is as it was)");
  return absl::StrCat(" (and putting process ", job, " back failed: ", back.message(), ")");
}

}  // namespace

absl::StatusOr<GpuSwapped> SwapOnGpu(GpuJobs& jobs, pid_t out, pid_t in, absl::Duration lock_timeout,
                                     const std::string& why, const std::function<bool()>& cancelled) {
  GpuSwapped swapped;
  Stopwatch whole;
  absl::StatusOr<GpuMoved> parked = GpuMoved(), resumed = GpuMoved();
  auto park = [&] {
    Stopwatch watch;
    parked = CatchNoMoreThreads([&] { return jobs.Park(out, lock_timeout, why); });
    swapped.park_seconds = watch.seconds();
  };
  auto resume = [&] {
    Stopwatch watch;
    resumed = CatchNoMoreThreads([&] { return jobs.Resume(in, {}, cancelled); });
    swapped.resume_seconds = watch.seconds();
  };
  // Before anything is parked for it.
  RK_RETURN_IF_ERROR(jobs.CheckDriver(in));
  const bool at_once = jobs.FitsNow(in);
  if (at_once) {
    InParallel(2, [&](size_t i) { i == 0 ? park() : resume(); });
  } else {
    park();
    if (parked.ok()) resume();
  }

  if (!parked.ok()) {
    const bool on_gpu = at_once && resumed.ok() && resumed->moved;
    if (!on_gpu) return parked.status();
    return Annotate(parked.status(), absl::StrCat("parking process ", out,
                                                  AsItWas(in, jobs.Park(in, lock_timeout, why).status())));
  }
  if (!resumed.ok()) {
    const absl::Status back = parked->moved ? jobs.Resume(out, {}).status() : absl::OkStatus();
    return Annotate(resumed.status(), absl::StrCat("resuming process ", in, AsItWas(out, back)));
  }
  swapped.out = *parked;
  swapped.in = *resumed;
  swapped.seconds = whole.seconds();
  return swapped;
}

}  // namespace rekindle::daemon
