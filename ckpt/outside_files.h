// What a job with mounts of its own has open by a mount that is not among them: a shell had opened it before
// `unshare --mount`. CRIU refuses such files, unless it is told that they come from outside.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace rekindle::ckpt {

// CRIU's names of those that the job finds by their paths, too ("file[MOUNT:INODE]"), to these paths. Empty
// where its mounts are ours, or it has PIDs of its own: a container's output stays outside. Thread-safe.
std::map<std::string, std::string> FilesOfOutsideMounts(const std::vector<pid_t>& pids);

}  // namespace rekindle::ckpt
