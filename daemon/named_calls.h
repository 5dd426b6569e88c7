// Calls in work that their clients have given a name, by which they can have them give up.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// In a std::shared_ptr. Thread-safe.
class NamedCalls : public std::enable_shared_from_this<NamedCalls> {
 public:
  // In a call's metadata.
  static constexpr char kMetadata[] = "rekindle-call";

  // A call of `user` is in work until the last copy of the result goes, which is set once it is to give up.
  // Of several with one name all are.
  std::shared_ptr<const std::atomic<bool>> Begin(uid_t user, std::string name) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto call = calls_.emplace(std::piecewise_construct, std::forward_as_tuple(user, std::move(name)),
                                     std::forward_as_tuple(false));
    return {&call->second,
            [calls = shared_from_this(), call](const std::atomic<bool>*) { calls->End(call); }};
  }

  // False: the user has none of that name.
  bool GiveUp(uid_t user, const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto [first, last] = calls_.equal_range({user, name});
    for (auto call = first; call != last; ++call) call->second.store(true);
    return first != last;
  }

 private:
  using Calls = std::multimap<std::pair<uid_t, std::string>, std::atomic<bool>>;

  void End(Calls::iterator call) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }

  absl::Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
