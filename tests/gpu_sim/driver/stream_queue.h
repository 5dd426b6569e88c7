// A stream: work done in order by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/gpu_sim/driver/gate.h"

namespace rekindle::gpu_sim {

class StreamQueue {
 public:
  StreamQueue();
  ~StreamQueue();  // does what is queued first
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  uint64_t Push(std::function<void()> work);  // its number: the first is 1
  uint64_t Pushed() const;
  bool Done(uint64_t number) const;
  void WaitFor(uint64_t number) const;
  bool WaitUntilIdle(Deadline deadline) const;

 private:
  void Work();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t pushed_ = 0, done_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace rekindle::gpu_sim
