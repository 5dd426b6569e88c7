// What happens to a supervised job, for all who follow it.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/timed_await.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// One follower's events, oldest first. Thread-safe.
class JobEventQueue {
 public:
  // Nothing when none has come within `timeout`.
  std::optional<v1::JobEvent> Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(this, &JobEventQueue::HasEvents), Deadline(timeout));
    if (events_.empty()) return std::nullopt;
    v1::JobEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  void Add(const v1::JobEvent& event) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(event);
  }

 private:
  bool HasEvents() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); }
  absl::Mutex mutex_;
  std::deque<v1::JobEvent> events_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe. A follower leaves by dropping its queue.
class JobEvents {
 public:
  // Gets all later events; first, if the job has ended, how.
  std::shared_ptr<JobEventQueue> Follow() ABSL_LOCKS_EXCLUDED(mutex_) {
    auto queue = std::make_shared<JobEventQueue>();
    absl::MutexLock lock(&mutex_);
    if (last_) {
      queue->Add(*last_);
    } else {
      followers_.push_back(queue);
    }
    return queue;
  }
  // Does anybody get it now?
  bool Send(const v1::JobEvent& event) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (event.has_exited()) last_ = event;
    for (auto it = followers_.begin(); it != followers_.end();) {
      if (auto queue = it->lock()) {
        queue->Add(event);
        ++it;
      } else {
        it = followers_.erase(it);
      }
    }
    return !followers_.empty();
  }

 private:
  absl::Mutex mutex_;
  std::list<std::weak_ptr<JobEventQueue>> followers_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::JobEvent> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
