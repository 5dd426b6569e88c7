// Sends to a client what must not be waited for: one that reads nothing would keep standing what stands still
// meanwhile, for as long as it lives.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/parallel.h"
#include "base/timed_await.h"
#include "daemon/call.h"

namespace rekindle::daemon {

// How long a client may take for what is left when its call's work is done.
inline constexpr absl::Duration kClientMayTake = absl::Minutes(1);

// Of few messages: none is left out. Thread-safe. While it lives nobody else may send on the stream.
template <typename Event>
class SendingThread {
 public:
  // `send` and `abandon` as of a Call.
  SendingThread(const EventSink<Event>& send, std::function<void()> abandon,
                absl::Duration patience = kClientMayTake)
      : send_(send), abandon_(std::move(abandon)), patience_(patience) {
    CatchNoMoreThreads([this] {
      thread_ = std::thread([this] { Run(); });
      return absl::OkStatus();
    }).IgnoreError();
  }
  ~SendingThread() { Finish(); }

  // Returns at once, unless there could be no thread.
  void Send(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!thread_.joinable()) {
      send_(event);
      return;
    }
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(event));
  }

  // Until all of it is sent; a client that takes longer than the patience for that is given up. After it the
  // caller may send on the stream again.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!thread_.joinable()) return;
    bool sent;
    {
      absl::MutexLock lock(&mutex_);
      finishing_ = true;
      sent = AwaitUntil(mutex_, absl::Condition(&done_), Deadline(patience_));
    }
    if (!sent && abandon_) abandon_();
    thread_.join();
  }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto next = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return finishing_ || !waiting_.empty(); };
    absl::MutexLock lock(&mutex_);
    for (;;) {
      mutex_.Await(absl::Condition(&next));
      if (waiting_.empty()) break;
      const Event event = std::move(waiting_.front());
      waiting_.pop_front();
      mutex_.Unlock();
      send_(event);
      mutex_.Lock();
    }
    done_ = true;
  }

  const EventSink<Event>& send_;
  const std::function<void()> abandon_;
  const absl::Duration patience_;
  absl::Mutex mutex_;
  std::deque<Event> waiting_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
