// What the command's exit status says: documented in docs/cli.md, and never changed.
#pragma once

#include "absl/status/status.h"

namespace rekindle::cli {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kBadUsage = 2,
  kNotFound = 3,
  kNotPermitted = 4,
  kUnsupported = 5,  // on this machine
  kNoStore = 6,      // it may be a file system that is not mounted: that says nothing of what is in it
  // Of waiting for jobs alone; as timeout(1) has it.
  kTimedOut = 124,
};

ExitCode ExitCodeFor(const absl::Status& status);

}  // namespace rekindle::cli
