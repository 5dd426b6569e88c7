// Monotonic time. All functions are thread-safe.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace rekindle {

using SteadyClock = std::chrono::steady_clock;

// Measures from its construction (or the last Restart) on.
class Stopwatch {
 public:
  void Restart() { start_ = SteadyClock::now(); }
  double seconds() const { return std::chrono::duration<double>(SteadyClock::now() - start_).count(); }
  int64_t microseconds() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - start_).count();
  }

 private:
  SteadyClock::time_point start_ = SteadyClock::now();
};

// For moments that are compared with each other alone: no moment of the day, and nobody sets it.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(SteadyClock::now().time_since_epoch());
}

// Wall-clock time, in nanoseconds since the Unix epoch.
inline int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// As of the times of files.
inline int64_t Nanos(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace rekindle
