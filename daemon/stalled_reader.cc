#include "daemon/stalled_reader.h"

#include <utility>

#include "base/deadline.h"
#include "base/timed_await.h"

namespace rekindle::daemon {

StalledReader::StalledReader(absl::Duration patience, std::function<void()> give_up)
    : patience_(patience), give_up_(std::move(give_up)) {
  if (give_up_) thread_ = std::thread(&StalledReader::Watch, this);
}

StalledReader::~StalledReader() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void StalledReader::Watch() {
  {
    absl::MutexLock lock(&mutex_);
    uint64_t watched = 0;
    const auto begins = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ending_ || sending_; };
    const auto goes_on = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return ending_ || !sending_ || sends_ != watched;
    };
    do {
      mutex_.Await(absl::Condition(&begins));
      watched = sends_;
    } while (!ending_ && AwaitUntil(mutex_, absl::Condition(&goes_on), Deadline(patience_)));
    if (ending_) return;
    given_up_ = true;
  }
  give_up_();
}

}  // namespace rekindle::daemon
