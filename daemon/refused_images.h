// Images of dependencies from which a start was refused for files that are other ones by now. What such an
// image has loaded (loaded_files.h) does not tell of all of them: programs map data, too, such as the locales
// of the C library, which may be made anew at any time.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "criu/failure.h"
#include "restore/compatibility.h"
#include "restore/file_identities.h"

namespace rekindle::daemon {

// Of a start: what the image needs was upgraded, moved, or removed.
inline bool IsRefusedForOtherFiles(const absl::Status& refused) {
  if (absl::StrContains(refused.message(), restore::kAnotherBuild)) return true;
  if (restore::IsRefusedForFiles(refused)) return true;
  const std::string diagnosis = criu::DiagnosisId(refused);
  return diagnosis == "file-changed" || diagnosis == "file-missing" || diagnosis == "cwd-missing";
}

// Thread-safe.
class RefusedImages {
 public:
  void Note(const std::string& digest, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (refused_.size() >= kMost && !refused_.contains(digest)) refused_.erase(refused_.begin());
    refused_[digest] = std::string(why.message());
  }
  // Nothing: it was not. One that is made anew has another digest.
  std::optional<std::string> Why(const std::string& digest) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = refused_.find(digest);
    return found == refused_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  // One that is forgotten is refused again.
  static constexpr size_t kMost = 1000;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::string> refused_ ABSL_GUARDED_BY(mutex_);  // why, by digest
};

}  // namespace rekindle::daemon
