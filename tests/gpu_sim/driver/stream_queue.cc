#include "tests/gpu_sim/driver/stream_queue.h"

#include <utility>

#include "tests/gpu_sim/driver/thread.h"

namespace rekindle::gpu_sim {

StreamQueue::StreamQueue() : thread_(StartThread([this] { Work(); })) {}

StreamQueue::~StreamQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

uint64_t StreamQueue::Push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return ++pushed_;
}

uint64_t StreamQueue::Pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool StreamQueue::Done(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void StreamQueue::WaitFor(uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

bool StreamQueue::WaitUntilIdle(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return done_ == pushed_; });
}

void StreamQueue::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace rekindle::gpu_sim
