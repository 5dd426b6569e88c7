#include "daemon/garbage_timer.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/timeline.h"

namespace rekindle::daemon {
namespace {

constexpr int64_t kLeastBetweenCollectionsNanos = 20'000'000'000;
constexpr int64_t kLongestWaitNanos = 3600'000'000'000;

}  // namespace

void GarbageTimer::CollectSoon(double seconds) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  const int64_t wanted = MonotonicNanos() + static_cast<int64_t>(seconds * 1e9);
  const int64_t not_before = collected_at_ns_ + (seconds > 0 ? kLeastBetweenCollectionsNanos : 0);
  collect_at_ns_ = std::min(collect_at_ns_, std::max(wanted, not_before));
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread(&GarbageTimer::Loop, this);
    } catch (const std::system_error& error) {  // the next call tries again
      Log(LogLevel::kWarning, absl::StrCat("garbage is not collected now: ", NoMoreThreads(error).message()));
      return;
    }
  }
  wakeup_.Notify();
}

void GarbageTimer::Loop() {
  for (;;) {
    int64_t wait = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      wait = collect_at_ns_ - MonotonicNanos();
      if (wait <= 0) collect_at_ns_ = INT64_MAX;
    }
    if (wait > 0) {
      wakeup_.WaitFor(absl::Nanoseconds(std::min(wait, kLongestWaitNanos)));
      continue;
    }
    if (const absl::Status collected = collect_(); !collected.ok())
      Log(LogLevel::kWarning, absl::StrCat("garbage was not collected: ", collected.message()));
    absl::MutexLock lock(&mutex_);
    collected_at_ns_ = MonotonicNanos();
  }
}

void GarbageTimer::BeginStop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wakeup_.Notify();
}

void GarbageTimer::Stop() {
  BeginStop();
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace rekindle::daemon
