// The calls in work, and how many of them each user has: each takes a thread of the daemon, and what it does.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/peer_credentials.h"

namespace rekindle::daemon {

// In a std::shared_ptr. Thread-safe.
class CallsOfUsers : public std::enable_shared_from_this<CallsOfUsers> {
 public:
  // On each of a user's connections one that lasts, and another that sends its job a signal.
  static constexpr size_t kMostOfOne = 2 * PeerRegistry::kNumbersPerIdentity;

  // Beside these of calls that others of its own may wait for: leases that end let its leases begin.
  static constexpr size_t kMostReleasesOfOne = 64;
  enum class Kind { kAny, kRelease, kOfAdministrator };

  explicit CallsOfUsers(size_t most_of_one = kMostOfOne) : most_of_one_(most_of_one) {}

  // One more of this user, until the last copy of the result goes. ResourceExhausted: there are too many.
  absl::StatusOr<std::shared_ptr<void>> Begin(uid_t user, Kind kind = Kind::kAny)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const std::pair<uid_t, Kind> counted(user, kind);
    const auto it = calls_.find(counted);
    const size_t calls = it == calls_.end() ? 0 : it->second;
    if (calls >= (kind == Kind::kRelease ? kMostReleasesOfOne : most_of_one_)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("uid ", user, " has ", calls,
                       " calls in work, as many as one user may: wait until some have ended"));
    }
    return Count(counted);
  }

  // An administrator's, who may have any number.
  std::shared_ptr<void> BeginOfAdministrator() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return Count({0, Kind::kOfAdministrator});
  }

  bool AnyInWork() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return !calls_.empty();
  }

 private:
  std::shared_ptr<void> Count(const std::pair<uid_t, Kind>& counted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++calls_[counted];
    return std::shared_ptr<void>(this, [users = shared_from_this(), counted](void*) { users->End(counted); });
  }

  void End(const std::pair<uid_t, Kind>& counted) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto calls = calls_.find(counted);
    if (--calls->second == 0) calls_.erase(calls);
  }

  const size_t most_of_one_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<uid_t, Kind>, size_t> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
