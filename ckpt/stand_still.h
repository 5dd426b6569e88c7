// The time in which a job stands still because this process takes an image of it. Who stops this process then
// (Ctrl-Z in a terminal) stops the job with it, for as long as it takes until somebody lets it go on: so a
// stop waits. All functions are thread-safe, and for the whole process.
#pragma once

#include <functional>

namespace rekindle::ckpt {

// While one exists a job stands still.
class StandStill {
 public:
  // Waits while a stop is under way.
  StandStill();
  ~StandStill();
  StandStill(const StandStill&) = delete;
  StandStill& operator=(const StandStill&) = delete;
};

// Calls `stop`, which stops this process and returns when it goes on, once no job stands still.
void StopWhenNoneStandsStill(const std::function<void()>& stop);

}  // namespace rekindle::ckpt
