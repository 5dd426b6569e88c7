// Watches over one long call from a thread of its own: sees when the client cancels, and sends the newest
// progress now and then. The work itself never waits for the client, so a slow reader can't keep a job
// frozen.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/call.h"
#include "daemon/cancellation.h"
#include "daemon/sending_thread.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// Thread-safe. While it lives nobody else may ask `call.cancelled` or send on the stream.
class CallMonitor {
 public:
  static constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);
  static constexpr absl::Duration kCancelInterval = absl::Milliseconds(20);

  CallMonitor(const Call& call, EventSink<v1::Progress> sink, absl::Duration patience = kClientMayTake);
  ~CallMonitor() { Stop(); }

  // Takes note and returns at once. A new phase is always sent; of one phase's reports the newest.
  void Report(absl::string_view phase, uint64_t bytes_done, uint64_t bytes_total, double elapsed_seconds,
              const std::vector<std::string>& devices = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // Set, and readable, once the client has cancelled.
  const Cancellation& cancellation() const { return cancellation_; }
  const std::atomic<bool>& cancelled() const { return cancellation_.cancelled(); }
  int cancel_fd() const { return cancellation_.fd(); }

  // Sends what is left and ends the thread. A client that takes longer than the patience for that is given
  // up: it reads nothing, and who has begun to send to it waits for as long as it lives. After it the caller
  // may send on the stream again.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  const Call& call_;
  const EventSink<v1::Progress> sink_;
  const absl::Duration patience_;
  Cancellation cancellation_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::Progress> latest_ ABSL_GUARDED_BY(mutex_);
  std::string phase_ ABSL_GUARDED_BY(mutex_);
  double phase_began_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace rekindle::daemon
