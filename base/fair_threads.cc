#include "base/fair_threads.h"

#include <utility>

namespace rekindle {

FairThreads::FairThreads(int threads, int share) : share_(share) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

void FairThreads::Post(Owner owner, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;  // `work` goes with the caller's frame, without the lock
  auto entry = queues_.try_emplace(owner).first;
  entry->second.work.push_back(std::move(work));
  GiveTurn(*entry);
}

void FairThreads::Join() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  Queues left;  // posted when the threads had ended already
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  left.swap(queues_);
}

void FairThreads::GiveTurn(Queues::value_type& owner) {
  Queue& queue = owner.second;
  if (queue.has_turn || queue.work.empty() || queue.running >= share_) return;
  queue.has_turn = true;
  turns_.push_back(owner.first);
}

void FairThreads::Run() {
  for (;;) {
    Queues::iterator owner;  // stays as long as its work runs
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FairThreads::HasTurnOrIsOver));
      if (turns_.empty()) return;
      owner = queues_.find(turns_.front());
      turns_.pop_front();
      Queue& queue = owner->second;
      queue.has_turn = false;
      work = std::move(queue.work.front());
      queue.work.pop_front();
      ++queue.running;
      GiveTurn(*owner);
    }
    work();
    work = nullptr;  // what it holds may end here, and post
    absl::MutexLock lock(&mutex_);
    Queue& queue = owner->second;
    --queue.running;
    GiveTurn(*owner);
    if (queue.work.empty() && queue.running == 0) queues_.erase(owner);
  }
}

}  // namespace rekindle
