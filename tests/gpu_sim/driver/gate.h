// Where the job's calls into the driver wait while it is locked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace rekindle::gpu_sim {

using Deadline = std::chrono::steady_clock::time_point;

class Gate {
 public:
  void Enter();
  void Leave();

  // From now on calls wait; true once all that were inside have left. False at the deadline: stays closed.
  bool Close(Deadline deadline);
  void Open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int inside_ = 0;
};

}  // namespace rekindle::gpu_sim
