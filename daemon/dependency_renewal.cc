#include "daemon/dependency_renewal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/timed_await.h"

namespace rekindle::daemon {

DependencyRenewal::DependencyRenewal(Work work, Times times) : work_(std::move(work)), times_(times) {
  thread_ = std::thread(&DependencyRenewal::Loop, this);
}

void DependencyRenewal::Stop() {
  if (!thread_.joinable()) return;
  cancel_.Cancel();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DependencyRenewal::LookSoon() {
  absl::MutexLock lock(&mutex_);
  soon_ = true;
}

void DependencyRenewal::Loop() {
  for (absl::Duration wait = times_.first_look;; wait = times_.between_looks) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || soon_; };
      AwaitUntil(mutex_, absl::Condition(&wanted), Deadline(wait));
      if (stopping_) return;
      soon_ = false;
    }
    Look();
  }
}

void DependencyRenewal::Look() {
  const std::set<std::string> in_use = work_.in_use();
  std::erase_if(rests_, [&](const auto& rest) { return !in_use.contains(rest.first); });
  for (const std::string& reference : in_use) {
    const auto resting = rests_.find(reference);
    if (resting != rests_.end() && SteadyNow() < resting->second.until) continue;
    const std::optional<std::string> why = work_.change(reference);
    if (!why) {
      rests_.erase(reference);
      continue;
    }
    Log(LogLevel::kInfo, absl::StrCat("dependency image '", reference, "' is made anew: ", *why));
    const absl::Status renewed = CatchNoMoreThreads([&] { return work_.renew(reference, cancel_); });
    if (cancel_.cancelled()) return;
    if (!renewed.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("dependency image '", reference,
                                           "' could not be made anew, and is used as it is where that is "
                                           "possible; it is tried again: ",
                                           renewed.message()));
    }
    const absl::Duration length = resting == rests_.end()
                                      ? times_.first_rest
                                      : std::min(resting->second.length * 2, times_.longest_rest);
    rests_[reference] = {SteadyNow() + length, length};
  }
}

}  // namespace rekindle::daemon
