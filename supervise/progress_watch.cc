#include "supervise/progress_watch.h"

#include <algorithm>

namespace rekindle::supervise {
namespace {

// Of one CPU. Threads that only wake now and then to look for work, as those of data loaders do, use less.
constexpr double kIdleShare = 0.001;
// To be frozen and to wake up from it costs a process some time too, which is counted in ticks of 10 ms.
constexpr double kWakingCpuSeconds = 0.03, kMostWakingCpuSeconds = 0.3;

}  // namespace

void ProgressWatch::Restart(double now_seconds) {
  has_last_ = false;
  speaks_ = false;
  watching_ = true;
  began_seconds_ = now_seconds;
  sound_until_seconds_ = now_seconds;
  Sign(now_seconds);
}

void ProgressWatch::Add(const ProgressSample& sample) {
  if (!watching_) {
    watching_ = true;
    began_seconds_ = sample.at_seconds;
    Sign(sample.at_seconds);
  }
  if (has_last_) {
    quiet_cpu_seconds_ += std::max(0.0, sample.cpu_seconds - last_.cpu_seconds);
    const bool uses =
        quiet_cpu_seconds_ > kIdleShare * std::max(0.0, sample.at_seconds - last_sign_seconds_) ||
        sample.io_bytes > last_.io_bytes;
    const bool works = sample.output_bytes > last_.output_bytes || (sign_ == ProgressSign::kAny && uses);
    const bool reports = sample.reported != 0 && sample.reported != last_.reported;
    if (reports || (!speaks_ && works)) Sign(sample.at_seconds);
  }
  speaks_ = speaks_ || sample.reported != 0;
  last_ = sample;
  has_last_ = true;
}

void ProgressWatch::Rebase(const ProgressSample& sample, double excused_seconds) {
  if (!watching_) return Restart(sample.at_seconds);
  quiet_cpu_seconds_ = std::max(quiet_cpu_seconds_ - kWakingCpuSeconds, -kMostWakingCpuSeconds);
  last_sign_seconds_ = std::min(last_sign_seconds_ + std::max(0.0, excused_seconds), sample.at_seconds);
  // What the job said of itself meanwhile counts all the same.
  if (sample.reported != 0 && has_last_ && sample.reported != last_.reported) Sign(sample.at_seconds);
  speaks_ = speaks_ || sample.reported != 0;
  last_ = sample;
  has_last_ = true;
}

void ProgressWatch::Excuse(const ProgressSample& sample) {
  Rebase(sample, has_last_ ? sample.at_seconds - last_.at_seconds : 0);
}

bool ProgressWatch::Hangs(double now_seconds) const {
  return hang_seconds_ > 0 && QuietSeconds(now_seconds) >= hang_seconds_;
}

double ProgressWatch::QuietSeconds(double now_seconds) const {
  return watching_ ? std::max(0.0, now_seconds - last_sign_seconds_) : 0;
}

bool ProgressWatch::MayHangUnseen(double now_seconds) const {
  return hang_seconds_ > 0 && sign_ == ProgressSign::kAny && watching_ && !speaks_ &&
         now_seconds - began_seconds_ >= hang_seconds_;
}

void ProgressWatch::Sign(double at_seconds) {
  if (has_last_) sound_until_seconds_ = last_.at_seconds;
  last_sign_seconds_ = at_seconds;
  quiet_cpu_seconds_ = 0;
}

}  // namespace rekindle::supervise
