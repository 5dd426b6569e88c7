// Keeps dependency images as an interpreter that is started now would be: in the background those are made
// anew whose files were upgraded since. Functions go on from the old image until the new one is there. Those
// that could have none when they were deployed, or none with their layers, get it here, as soon as it can be
// made.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/cancellation.h"

namespace rekindle::daemon {

// Thread-safe.
class DependencyRenewal {
 public:
  using Function = std::pair<std::string, uint64_t>;  // name and revision
  // For people: what it lacks, and what it does meanwhile.
  struct Lack {
    std::string what, meanwhile;
    uid_t owner = 0;  // whose function it is
  };
  // Called on a thread of its own, one after the other.
  struct Work {
    std::function<std::set<std::string>()> in_use;  // references of the images that are looked at
    // Why one has to be made anew; nothing: it is as it should be.
    std::function<std::optional<std::string>(const std::string& reference)> change;
    std::function<absl::Status(const std::string& reference, const Cancellation& cancel)> renew;
    // Functions, with their revisions, that could not have the image that they are to start from.
    std::function<std::map<Function, Lack>()> without;
    // Returns whether it has it now; false: it is not to have one any more, of which who knows why has told.
    std::function<absl::StatusOr<bool>(const Function& function, const Cancellation& cancel)> make;
  };
  struct Times {
    absl::Duration first_look = absl::Seconds(5), between_looks = absl::Minutes(1);
    // After an attempt the same image, or function, is left alone, twice as long each time: an upgrade may be
    // under way, or what it needs be gone. That of a deployment is one.
    absl::Duration first_rest = absl::Minutes(1), longest_rest = absl::Hours(1);
    // After an attempt that failed all functions of its owner are left alone for so many times as long as it
    // took: one user's modules that never come to an end keep nobody else waiting for long.
    double rests_of_owner = 4;
  };
  explicit DependencyRenewal(Work work) : DependencyRenewal(std::move(work), Times()) {}
  DependencyRenewal(Work work, Times times);
  ~DependencyRenewal() { Stop(); }

  // Gives up what is being made. By one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // A start has shown that something was changed, or one more image is used.
  void LookSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  // An image was made, which others may have waited for: functions without one have rested enough. Not of
  // those that an attempt for such a function makes, which would never rest if it fails each time.
  void ImageMade() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Rest {
    absl::Time until;
    absl::Duration length;
  };
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Look();
  // When the first of them has rested.
  absl::Time LookForThoseWithout(bool rested);
  absl::StatusOr<bool> Make(const Function& function) ABSL_LOCKS_EXCLUDED(mutex_);
  Rest NextRest(const Rest* last) const;

  const Work work_;
  const Times times_;
  Cancellation cancel_;
  std::map<std::string, Rest> rests_;  // the thread's own, as the next
  std::map<Function, Rest> rests_of_functions_;
  std::set<Function> untried_;
  std::map<uid_t, absl::Time> owners_rest_until_;
  absl::Mutex mutex_;
  bool soon_ ABSL_GUARDED_BY(mutex_) = false, image_made_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id maker_ ABSL_GUARDED_BY(mutex_);  // who makes one for a function without
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
