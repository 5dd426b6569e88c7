// What lies in a /tmp, and a /dev/shm, that are a job's own (restore/own_temporary.h): it goes into the job's
// image, and each copy begins with it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// What an image has room for: each copy gets all of it before it runs.
struct TemporaryLimits {
  uint64_t bytes = 0;  // of memory
  size_t files = 0;    // folders and links, too
  // What it has mapped of its /dev/shm, beside these: each copy has that outside its own limit of memory, as
  // these.
  uint64_t mapped_bytes = uint64_t{64} << 20;
};
inline constexpr TemporaryLimits kDependencyTemporary = {uint64_t{32} << 20, 4096};
// A function's has what its dependencies have left, and room for its own. The smallest function has 64 MiB.
inline constexpr TemporaryLimits kFunctionTemporary = {uint64_t{48} << 20, 6144};

struct TakenTemporaryFiles {
  v1::TemporaryFiles record;
  std::string contents;
};

// `root` leads to the job's root folder ("/proc/PID/root"). Of folders that are the machine's nothing is
// taken, nor of what is mounted in its own; neither are sockets, which CRIU makes, and `without`: paths.
// FailedPrecondition: there is more than an image has room for, of which it says what takes most, or folders
// that are links on this machine have anything in them.
absl::StatusOr<TakenTemporaryFiles> TakeTemporaryFiles(const std::string& root,
                                                       const std::set<std::string>& without,
                                                       const TemporaryLimits& limits);

// Whether there would be room, by a look at a job that runs, of which these are the processes.
absl::Status CheckTemporaryFiles(const std::string& root, const std::vector<pid_t>& processes,
                                 const TemporaryLimits& limits);

}  // namespace rekindle::ckpt
