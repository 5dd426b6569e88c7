// Namespaces of a job that CRIU takes an image of, and can't bring back.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rekindle::ckpt {

// Before the freeze: `pids` are those of the job, the root's first. Unimplemented: it has a user namespace of
// its own, or one of its processes or threads is in another namespace than the rest. Thread-safe.
absl::Status CheckNamespaces(const std::vector<pid_t>& pids);

// The same of an image, of what has come about since; also of mounts that went into it. The job is to go on.
absl::Status CheckNamespacesInImage(pid_t root, const std::map<std::string, std::string>& criu_files);

}  // namespace rekindle::ckpt
