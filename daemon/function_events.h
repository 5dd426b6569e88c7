// Asynchronous calls of functions: accepted, and tried until the function succeeds, up to three times where
// it fails, and as long as the node can't start an instance for it.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/lifeline.h"
#include "daemon/waiting_events.h"
#include "functions/function_catalog.h"
#include "functions/function_logs.h"
#include "functions/http_threads.h"
#include "functions/scheduler.h"

namespace rekindle::daemon {

// Thread-safe. All that it is given outlives it.
class FunctionEvents {
 public:
  FunctionEvents(const functions::FunctionCatalog& catalog, functions::Scheduler& scheduler,
                 functions::FunctionLogs& logs, functions::HttpThreads& threads);
  // What waits for its next attempt is dropped, and so is what fails from here on; the daemon's log says so.
  ~FunctionEvents();

  // For the function as it is there now: with another owner it is dropped. `work` is kept until the event has
  // succeeded or is dropped. ResourceExhausted: as many wait as may, or hold as much; it was not accepted.
  absl::Status Accept(const functions::FunctionRecord& function, functions::Call call,
                      std::shared_ptr<void> work);
  // What waits for its next attempt has it now, as its last one.
  void FinishUp() ABSL_LOCKS_EXCLUDED(mutex_);

  // What was not accepted.
  WaitingEvents::Refusals refusals() const { return waiting_->refusals(); }

 private:
  struct Event;  // that was accepted and is not answered to anybody
  void Try(const std::shared_ptr<Event>& event);
  void Tried(const std::shared_ptr<Event>& event, const absl::StatusOr<functions::CallResult>& result)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void TryLater(const std::shared_ptr<Event>& event, absl::Duration wait) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const Event& event, absl::string_view why);

  const functions::FunctionCatalog& catalog_;
  functions::Scheduler& scheduler_;
  functions::FunctionLogs& logs_;
  functions::HttpThreads& threads_;
  const std::shared_ptr<WaitingEvents> waiting_;

  absl::Mutex mutex_;
  std::set<std::shared_ptr<boost::asio::steady_timer>> retries_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  // each event has one more attempt at most
  Lifeline<FunctionEvents> lifeline_{this};
};

}  // namespace rekindle::daemon
