// Threads get back the processors that they were bound to, and their manners (ckpt/thread_placement.h).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "criu/image_files.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// While all threads of `tree` stand still, under the numbers of the image. The job gets no processors but
// those that the process `caller` (0, or one that has gone: this one) may run on, as if that had started it:
// a batch system has told it what is its own. What there is to tell the user.
std::vector<std::string> PlaceThreads(const v1::JobManifest& manifest,
                                      const std::vector<criu::PstreeEntry>& tree, pid_t caller);

// Once they run. CRIU makes all threads of a process on one processor and wakes them there, and the kernel
// may leave them there for seconds (seen: two for two): threads that wait for each other actively, as
// OpenMP's do, then get nearly nothing done. Those that are at work are shared out among the processors that
// they may run on; which these are stays as it is.
void SpreadThreads(const std::vector<pid_t>& processes);

// While they stand still too. What there is to tell the user.
std::vector<std::string> GiveManners(const v1::JobManifest& manifest);

}  // namespace rekindle::restore
