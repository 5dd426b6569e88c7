#include "daemon/waiting_events.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/human_units.h"

namespace rekindle::daemon {

absl::Status WaitingEvents::Add(uid_t owner, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (all_.events >= limits_.all || all_.bytes + bytes > limits_.bytes) {
    ++refusals_.all;
    return absl::ResourceExhaustedError(
        absl::StrCat(all_.events, " asynchronous calls, of ", FormatBytes(all_.bytes),
                     ", wait for their functions already: try again (at most ", limits_.all, ", of ",
                     FormatBytes(limits_.bytes), ")"));
  }
  const auto found = of_each_.find(owner);
  const Held of_one = found == of_each_.end() ? Held() : found->second;
  if (owner != 0 && (of_one.events >= limits_.of_one || of_one.bytes + bytes > limits_.bytes_of_one)) {
    ++refusals_.of_one;
    return absl::ResourceExhaustedError(
        absl::StrCat(of_one.events, " asynchronous calls, of ", FormatBytes(of_one.bytes),
                     ", wait for functions of user ", owner, " already: try again (at most ", limits_.of_one,
                     ", of ", FormatBytes(limits_.bytes_of_one), ", may of one user)"));
  }
  for (Held* held : {&all_, &of_each_[owner]}) {
    ++held->events;
    held->bytes += bytes;
  }
  return absl::OkStatus();
}

void WaitingEvents::Remove(uid_t owner, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto of_one = of_each_.find(owner);
  for (Held* held : {&all_, &of_one->second}) {
    --held->events;
    held->bytes -= bytes;
  }
  if (of_one->second.events == 0) of_each_.erase(of_one);
}

WaitingEvents::Refusals WaitingEvents::refusals() const {
  absl::MutexLock lock(&mutex_);
  return refusals_;
}

}  // namespace rekindle::daemon
