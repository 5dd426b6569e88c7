#include "gpu_state/move_reporter.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/parallel.h"
#include "gpu_state/device_plan.h"
#include "gpu_state/host_memory.h"

namespace rekindle::gpu {
namespace {

constexpr absl::Duration kReportEvery = absl::Milliseconds(100);

}  // namespace

MoveReporter::MoveReporter(absl::Span<const pid_t> pids, Way way, uint64_t before, MoveStep whole,
                           const MoveProgress& progress) {
  if (!progress) return;
  // Without a thread nothing is reported, and what is to be moved is moved all the same.
  CatchNoMoreThreads([&] {
    thread_ = std::thread([this, pids = std::vector<pid_t>(pids.begin(), pids.end()), way, before,
                           step = std::move(whole), progress]() mutable {
      progress(step);
      while (!ended_.WaitForNotificationWithTimeout(kReportEvery)) {
        const uint64_t now = OwnBytes(pids);
        const auto [less, more] = way == Way::kToHost ? std::pair(before, now) : std::pair(now, before);
        step.bytes_done = std::min(step.bytes_total, more > less ? more - less : 0);
        progress(step);
      }
    });
    return absl::OkStatus();
  }).IgnoreError();
}

MoveReporter::~MoveReporter() {
  ended_.Notify();
  if (thread_.joinable()) thread_.join();
}

MoveStep WholeMove(absl::Span<const GpuUse> uses) {
  MoveStep step;
  for (const auto& [uuid, bytes] : BytesByDevice(uses)) {
    step.bytes_total += bytes;
    step.devices.push_back(uuid);
  }
  return step;
}

}  // namespace rekindle::gpu
