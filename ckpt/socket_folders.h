// The folders in which a frozen job has Unix sockets, as they are while it stands still: programs remove them
// with their sockets, and a restore that gives the sockets their names again needs them
// (restore/socket_folders.h).
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

struct SocketFolders {
  std::vector<v1::SocketFolder> folders;  // by path, each with all above it
  // Sockets that are files of the job's user in folders that only root may change. The name that a socket was
  // bound to says nothing of that: its user may have seen another file system there, in a mount namespace or
  // under a root folder of his own.
  std::vector<std::string> placed;
  std::vector<std::string> warnings;
};

// To be called while the job stands still, with CRIU's small image files by name. `root` leads to the root
// folder of the job's names ("/", "/proc/PID/root"), `user` is whose job it is; of root's no socket is
// placed. Names with ".." are left out. DataLoss: CRIU's images can't be read.
absl::StatusOr<SocketFolders> LookAtSocketFolders(const std::map<std::string, std::string>& criu_files,
                                                  const std::string& root, uid_t user);

}  // namespace rekindle::ckpt
