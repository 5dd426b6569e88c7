#include "daemon/call_monitor.h"

#include <string>
#include <utility>

#include "base/clock.h"
#include "base/timed_await.h"

namespace rekindle::daemon {

CallMonitor::CallMonitor(const Call& call, EventSink<v1::Progress> sink, absl::Duration patience)
    : call_(call), sink_(std::move(sink)), patience_(patience) {
  if (call_.IsCancelled()) cancellation_.Cancel();
  thread_ = std::thread(&CallMonitor::Loop, this);
}

void CallMonitor::Report(absl::string_view phase, uint64_t bytes_done, uint64_t bytes_total,
                         double elapsed_seconds, const std::vector<std::string>& devices) {
  absl::MutexLock lock(&mutex_);
  if (phase_ != phase) {
    phase_ = std::string(phase);
    phase_began_ = elapsed_seconds;
  }
  v1::Progress& progress = latest_.emplace();
  progress.set_phase(std::string(phase));
  progress.set_bytes_done(bytes_done);
  progress.set_bytes_total(bytes_total);
  progress.set_elapsed_seconds(elapsed_seconds);
  progress.set_phase_seconds(elapsed_seconds - phase_began_);
  progress.mutable_devices()->Assign(devices.begin(), devices.end());
}

void CallMonitor::Stop() {
  if (!thread_.joinable()) return;
  bool ended;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    ended = AwaitUntil(mutex_, absl::Condition(&ended_), Deadline(patience_));
  }
  if (!ended && call_.abandon) call_.abandon();
  thread_.join();
}

void CallMonitor::Loop() {
  std::string sent_phase;
  absl::Time next_send = SteadyNow();
  for (bool stopping = false; !stopping;) {
    std::optional<v1::Progress> report;
    {
      absl::MutexLock lock(&mutex_);
      AwaitUntil(mutex_, absl::Condition(&stopping_), Deadline(kCancelInterval));
      stopping = stopping_;
      if (latest_ && (stopping || latest_->phase() != sent_phase || SteadyNow() >= next_send)) {
        report = std::exchange(latest_, std::nullopt);
      }
    }
    if (!cancelled() && call_.IsCancelled()) cancellation_.Cancel();
    if (report) {
      sent_phase = report->phase();
      next_send = SteadyNow() + kProgressInterval;
      sink_(*report);
    }
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

}  // namespace rekindle::daemon
