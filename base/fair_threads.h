// A few threads for the work of many owners, of which none can take them all: what one of them has to wait
// for, the others need not.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle {

// Thread-safe.
class FairThreads {
 public:
  using Owner = uint64_t;

  // `threads` in all, of which the work of one owner takes at most `share` at once.
  FairThreads(int threads, int share);
  ~FairThreads() { Join(); }
  FairThreads(const FairThreads&) = delete;
  FairThreads& operator=(const FairThreads&) = delete;

  // Owners take turns, each with what was posted first of theirs. Never blocks. After Join nothing is run
  // any more, and what is posted is destroyed.
  void Post(Owner owner, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what was posted, then ends the threads. Not to be called by two at once, nor by what was posted.
  void Join() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Queue {
    std::deque<std::function<void()>> work;
    int running = 0;
    bool has_turn = false;  // is in turns_
  };
  using Queues = std::map<Owner, Queue>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasTurnOrIsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !turns_.empty() || (ending_ && queues_.empty());
  }
  // In the order in which they came to have some work and a thread of their share free.
  void GiveTurn(Queues::value_type& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int share_;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
  Queues queues_ ABSL_GUARDED_BY(mutex_);  // of owners whose work waits or runs
  std::deque<Owner> turns_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace rekindle
