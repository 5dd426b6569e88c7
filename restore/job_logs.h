// Logs that a restored job gets in place of what its output was.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Does a log take the place of this file, all of the job's descriptors of which are then the log's?
bool IsReplacedByLog(const v1::StdioSlot& slot);
// As CRIU calls it (--inherit-fd).
std::string ResourceOfFile(const v1::StdioSlot& slot);
// By path. They need not be there any more.
std::set<std::string> FilesReplacedByLog(const v1::JobManifest& manifest);
// Where its output went, and the log of `run`: what somebody may rotate.
std::set<std::string> LogsOf(const v1::JobManifest& manifest);

// CRIU opens what it is given for a pipe anew, at its beginning: from now on the job, which has not run yet,
// appends. `root` is its pidfd. Of what is no file of the file system nothing changes.
absl::Status AppendToLogs(int root, const v1::JobManifest& manifest);

}  // namespace rekindle::restore
