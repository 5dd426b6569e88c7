// Before a job is frozen: can its files be opened again by whoever restores it? CRIU opens them by their
// names as the user that Rekindle is, and a file system of another machine may refuse to root what it gives
// to the job's user.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"

namespace rekindle::ckpt {

// FailedPrecondition names the first that can't, with the cure. Opens nothing. What has no name any more, or
// another, is not looked at: CRIU finds other ways to it, or says why not.
absl::Status CheckFilesCanBeOpenedAgain(const std::vector<pid_t>& pids);

}  // namespace rekindle::ckpt
