// Before a job is frozen: can its files be opened again by whoever restores it? CRIU opens them by their
// names as the user that Rekindle is, and a file system of another machine may refuse to root what it gives
// to the job's user.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rekindle::ckpt {

// FailedPrecondition names the first that can't, with the cure. Opens nothing. What has no name any more, or
// another, is not looked at: CRIU finds other ways to it, or says why not.
absl::Status CheckFilesCanBeOpenedAgain(const std::vector<pid_t>& pids);

// Of an image, after the freeze: has the job a file of /proc open that tells of a thread of its own, or of
// one that has gone? CRIU opens files before it makes threads, so that such an image could never be restored.
// Unavailable: it has.
absl::Status CheckNoFileOfThreads(pid_t root, const std::map<std::string, std::string>& criu_files);

}  // namespace rekindle::ckpt
