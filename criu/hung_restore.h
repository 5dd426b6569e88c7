// CRIU can wait without end for a process that was killed while it was being restored: near the end it does
// not listen to deaths any more, what it has heard of one in one stage is forgotten in the next, and of a
// process with threads that are traced nobody hears before these are gone.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace rekindle::criu {

// Who of the job has died while CRIU restores it, in whichever numbers a person is to be told. Called when
// CRIU has said nothing for a while.
using FindDead = std::function<std::optional<pid_t>()>;

// Has one CRIU come to wait in vain? Looked at only while nothing is heard of it: a restore that goes well
// does without. Owned by one thread.
class HungRestore {
 public:
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(500), kMayGoOn = absl::Seconds(3);

  HungRestore(int criu_pidfd, const FindDead& find_dead) : criu_pidfd_(criu_pidfd), find_dead_(find_dead) {}

  // To be called each kLookEvery. Aborted: somebody has died, and CRIU has not moved since for as long as it
  // may; it is the caller's to end.
  absl::Status Look();

 private:
  const int criu_pidfd_;
  const FindDead& find_dead_;
  std::string stands_;  // how often it has slept and woken
  std::optional<Deadline> patience_;
};

}  // namespace rekindle::criu
