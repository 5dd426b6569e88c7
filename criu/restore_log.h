// What CRIU did when during a restore, from its log of level 4: a timeline of its stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/timeline.h"

namespace rekindle::criu {

inline constexpr int kLogLevelWithStages = 4;

// CRIU has told over its RPC that it is at a stage ("pre-restore", "post-restore", …).
struct StageReached {
  std::string name;
  int64_t at_ns = 0;  // CLOCK_MONOTONIC, when we read it
};

// Process "criu": thread "restore" for what CRIU itself does, and "task PID" for each task that it makes. The
// log counts from its own begin; that is found by the lines in it that go with `stages`, and lies not before
// `requested_ns`. Empty when nothing in the log has a time.
Timeline RestoreStages(absl::string_view log, int64_t requested_ns, const std::vector<StageReached>& stages);

}  // namespace rekindle::criu
