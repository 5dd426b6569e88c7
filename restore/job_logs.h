// Logs that a restored job gets in place of what was a pipe.
#pragma once

#include "absl/status/status.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// CRIU opens what it is given for a pipe anew, at its beginning: from now on the job, which has not run yet,
// appends. `root` is its pidfd. Of what is no file of the file system nothing changes.
absl::Status AppendToLogs(int root, const v1::JobManifest& manifest);

}  // namespace rekindle::restore
