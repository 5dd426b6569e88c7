// Keeps dependency images as an interpreter that is started now would be: in the background those are made
// anew whose files were upgraded since. Functions go on from the old image until the new one is there.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/cancellation.h"

namespace rekindle::daemon {

// Thread-safe.
class DependencyRenewal {
 public:
  // Called on a thread of its own, one after the other.
  struct Work {
    std::function<std::set<std::string>()> in_use;  // references of the images that are looked at
    // Why one has to be made anew; nothing: it is as it should be.
    std::function<std::optional<std::string>(const std::string& reference)> change;
    std::function<absl::Status(const std::string& reference, const Cancellation& cancel)> renew;
  };
  struct Times {
    absl::Duration first_look = absl::Seconds(5), between_looks = absl::Minutes(1);
    // After an attempt the same image is left alone, twice as long each time: an upgrade may be under way, or
    // what it needs be gone.
    absl::Duration first_rest = absl::Minutes(1), longest_rest = absl::Hours(1);
  };
  explicit DependencyRenewal(Work work) : DependencyRenewal(std::move(work), Times()) {}
  DependencyRenewal(Work work, Times times);
  ~DependencyRenewal() { Stop(); }

  // Gives up what is being made. By one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // A start has shown that something was changed, or one more image is used.
  void LookSoon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Rest {
    absl::Time until;
    absl::Duration length;
  };
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Look();

  const Work work_;
  const Times times_;
  Cancellation cancel_;
  std::map<std::string, Rest> rests_;  // the thread's own
  absl::Mutex mutex_;
  bool soon_ ABSL_GUARDED_BY(mutex_) = false, stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
