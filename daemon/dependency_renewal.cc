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
  if (maker_ != std::this_thread::get_id()) image_made_ = true;
}

absl::StatusOr<bool> DependencyRenewal::Make(const Function& function) {
  const auto maker_is = [this](std::thread::id now) {
    absl::MutexLock lock(&mutex_);
    maker_ = now;
  };
  maker_is(std::this_thread::get_id());
  absl::StatusOr<bool> made = CatchNoMoreThreads([&] { return work_.make(function, cancel_); });
  maker_is({});
  return made;
}

void DependencyRenewal::Loop() {
  // Of an earlier daemon: whoever deploys one from now on has tried it.
  for (const auto& [function, lack] : work_.without()) untried_.insert(function);
  for (absl::Duration wait = times_.first_look;;) {
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
    const absl::Time next = cancel_.cancelled() ? absl::InfiniteFuture() : LookForThoseWithout(rested);
    wait = std::clamp(next - SteadyNow(), absl::ZeroDuration(), times_.between_looks);
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

absl::Time DependencyRenewal::LookForThoseWithout(bool rested) {
  const std::map<Function, Lack> without = work_.without();
  std::erase_if(rests_of_functions_, [&](const auto& rest) { return !without.contains(rest.first); });
  for (const auto& [function, lack] : without) {
    const auto resting = rests_of_functions_.find(function);
    const bool known = resting != rests_of_functions_.end();
    const bool untried = untried_.erase(function) > 0;
    if (!known && !untried) {
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
    if (cancel_.cancelled()) return absl::InfiniteFuture();
    if (made.ok()) {
      if (*made) {
        Log(LogLevel::kInfo, absl::StrCat("function '", function.first, "' has its ", lack.what,
                                          " now, which it could not have before"));
      }
      rests_of_functions_.erase(function);
      continue;
    }
    const absl::Time ended = SteadyNow();
    owners_rest_until_[lack.owner] = ended + times_.rests_of_owner * (ended - began);
    Rest& rest = rests_of_functions_[function];
    rest = NextRest(known || !untried ? &rest : nullptr);
    Log(LogLevel::kWarning, absl::StrCat("function '", function.first, "' has no ", lack.what, " still, and ",
                                         lack.meanwhile, "; it is tried again in ",
                                         absl::FormatDuration(rest.length), ": ", made.status().message()));
    // Images that everybody uses do not wait for all of these.
    Look();
    if (cancel_.cancelled()) return absl::InfiniteFuture();
  }
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [function, lack] : without) {
    const auto resting = rests_of_functions_.find(function);
    if (resting == rests_of_functions_.end()) continue;
    const auto owner = owners_rest_until_.find(lack.owner);
    next = std::min(next, owner == owners_rest_until_.end() ? resting->second.until
                                                            : std::max(resting->second.until, owner->second));
  }
  return next;
}

}  // namespace rekindle::daemon
