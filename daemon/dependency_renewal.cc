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

void DependencyRenewal::ImageMade() {
  absl::MutexLock lock(&mutex_);
  soon_ = true;
  if (!making_) image_made_ = true;
}

absl::StatusOr<bool> DependencyRenewal::Make(const Function& function) {
  const auto making = [this](bool now) {
    absl::MutexLock lock(&mutex_);
    making_ = now;
  };
  making(true);
  absl::StatusOr<bool> made = CatchNoMoreThreads([&] { return work_.make(function, cancel_); });
  making(false);
  return made;
}

void DependencyRenewal::Loop() {
  bool first = true;
  for (absl::Duration wait = times_.first_look;; wait = times_.between_looks) {
    bool rested = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || soon_; };
      AwaitUntil(mutex_, absl::Condition(&wanted), Deadline(wait));
      if (stopping_) return;
      soon_ = false;
      rested = std::exchange(image_made_, false);
    }
    Look();
    if (!cancel_.cancelled()) LookForThoseWithout(std::exchange(first, false), rested);
  }
}

DependencyRenewal::Rest DependencyRenewal::NextRest(const Rest* last) const {
  const absl::Duration length =
      last == nullptr ? times_.first_rest : std::min(last->length * 2, times_.longest_rest);
  return {SteadyNow() + length, length};
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
    rests_[reference] = NextRest(resting == rests_.end() ? nullptr : &resting->second);
  }
}

void DependencyRenewal::LookForThoseWithout(bool first, bool rested) {
  const std::map<Function, Lack> without = work_.without();
  std::erase_if(rests_of_functions_, [&](const auto& rest) { return !without.contains(rest.first); });
  for (const auto& [function, lack] : without) {
    const auto resting = rests_of_functions_.find(function);
    const bool known = resting != rests_of_functions_.end();
    // It was tried just now, by who has deployed it.
    if (!known && !first) {
      rests_of_functions_[function] = NextRest(nullptr);
      if (!rested) continue;
    }
    const absl::Time began = SteadyNow();
    if (known && !rested && began < resting->second.until) continue;
    if (const auto owner = owners_rest_until_.find(lack.owner); owner != owners_rest_until_.end()) {
      if (began < owner->second) {
        // It has rested enough itself.
        Rest& rest =
            rests_of_functions_.try_emplace(function, Rest{owner->second, times_.first_rest}).first->second;
        if (rested) rest.until = std::min(rest.until, owner->second);
        continue;
      }
      owners_rest_until_.erase(owner);
    }
    const absl::StatusOr<bool> made = Make(function);
    if (cancel_.cancelled()) return;
    if (made.ok()) {
      if (*made) {
        Log(LogLevel::kInfo, absl::StrCat("function '", function.first, "' has its ", lack.what,
                                          " now, which it could not have before"));
      }
      continue;
    }
    const absl::Time ended = SteadyNow();
    owners_rest_until_[lack.owner] = ended + times_.rests_of_owner * (ended - began);
    Rest& rest = rests_of_functions_[function];
    rest = NextRest(known || !first ? &rest : nullptr);
    Log(LogLevel::kWarning, absl::StrCat("function '", function.first, "' has no ", lack.what, " still, and ",
                                         lack.meanwhile, "; it is tried again in ",
                                         absl::FormatDuration(rest.length), ": ", made.status().message()));
    // Images that everybody uses do not wait for all of these.
    Look();
    if (cancel_.cancelled()) return;
  }
}

}  // namespace rekindle::daemon
