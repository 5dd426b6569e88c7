#include "daemon/stalled_stream.h"

#include <utility>

#include "base/deadline.h"
#include "base/timed_await.h"

namespace rekindle::daemon {

StalledStream::StalledStream(absl::Duration patience, std::function<void()> give_up)
    : patience_(patience), give_up_(std::move(give_up)) {
  if (give_up_) thread_ = std::thread(&StalledStream::Watch, this);
}

StalledStream::~StalledStream() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void StalledStream::Watch() {
  {
    absl::MutexLock lock(&mutex_);
    uint64_t watched = 0;
    const auto begins = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ending_ || waiting_; };
    const auto goes_on = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return ending_ || !waiting_ || waits_ != watched;
    };
    do {
      mutex_.Await(absl::Condition(&begins));
      watched = waits_;
    } while (!ending_ && AwaitUntil(mutex_, absl::Condition(&goes_on), Deadline(patience_)));
    if (ending_) return;
    given_up_ = true;
  }
  give_up_();
}

}  // namespace rekindle::daemon
