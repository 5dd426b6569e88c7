#include "tests/gpu_sim/driver/gate.h"

namespace rekindle::gpu_sim {

void Gate::Enter() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !closed_; });
  ++inside_;
}

void Gate::Leave() {
  const std::lock_guard lock(mutex_);
  --inside_;
  changed_.notify_all();
}

bool Gate::Close(Deadline deadline) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  return changed_.wait_until(lock, deadline, [this] { return inside_ == 0; });
}

void Gate::Open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

}  // namespace rekindle::gpu_sim
