// What is told of a supervised job: to those who follow it, to its owner in `ps`, and to the log.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "daemon/job_events.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// Thread-safe. Its lock is held while nothing else is called.
class JobNotices {
 public:
  // `daemon`: else this is a command that supervises the job and follows it, which is what the same user
  // looks at.
  JobNotices(std::string job, bool daemon) : job_(std::move(job)), daemon_(daemon) {}

  JobEvents& events() { return events_; }

  // To those who follow it and to the log; not to both of a command.
  void Tell(const v1::JobEvent& event, LogLevel level, const std::string& text);
  // To its owner, once, and no more than so many.
  void Warn(const std::string& warning) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, once of those that differ in names, times and addresses alone. `before` it in the warning.
  void WarnOfKind(const std::string& warning, absl::string_view before = "") ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> warnings() const ABSL_LOCKS_EXCLUDED(mutex_);

  // That its log is full, and what to do; empty: there is room, and what was told of it is taken back.
  void LogIsFull(const std::string& hint) ABSL_LOCKS_EXCLUDED(mutex_);
  bool told_of_full_log() const ABSL_LOCKS_EXCLUDED(mutex_);

  // To those who follow it, now and later: that its images do not get to that place; empty: they do again.
  void TellOfCopies(const std::string& place, const std::string& trouble) ABSL_LOCKS_EXCLUDED(mutex_);
  // What whoever begins to follow it is told of its copies; nothing: all is well.
  std::optional<v1::JobEvent> TroubleOfCopies() const ABSL_LOCKS_EXCLUDED(mutex_);

  // There is an image again, where it was told that there is none.
  void ImageTaken() ABSL_LOCKS_EXCLUDED(mutex_);
  // There is none, each reason once. Aborted: somebody else captures the job, who has an image then; that is
  // told when it goes on for longer than the `period_seconds` between images. `now`: MonotonicSeconds().
  void NoImage(const absl::Status& why, double now, double period_seconds) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nor is anybody to be told why.
  void NoImageWanted(const absl::Status& why, double now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // For how long somebody else captures it now.
  double BusySeconds(const absl::Status& why, double now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string job_;
  const bool daemon_;
  JobEvents events_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> kinds_told_ ABSL_GUARDED_BY(mutex_);    // without their numbers
  std::string full_log_told_ ABSL_GUARDED_BY(mutex_);           // as long as it is so
  std::set<std::string> reasons_told_ ABSL_GUARDED_BY(mutex_);  // why no image was taken, since the last one
  double busy_since_ ABSL_GUARDED_BY(mutex_) = 0;               // somebody else captures it; 0: not so
  v1::JobCopiesTrouble copies_trouble_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
