// What lies in a /tmp, and a /dev/shm, that are a job's own (restore/own_temporary.h): it goes into the job's
// image, and each copy begins with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// That an image has room for: each copy gets all of it before it runs.
inline constexpr uint64_t kMostTemporaryBytes = uint64_t{32} << 20;
inline constexpr size_t kMostTemporaryFiles = 4096;

struct TakenTemporaryFiles {
  v1::TemporaryFiles record;
  std::string contents;
};

// `root` leads to the job's root folder ("/proc/PID/root"). Of folders that are the machine's nothing is
// taken, nor of what is mounted in its own; neither are sockets, which CRIU makes, and `without`: paths.
// FailedPrecondition: there is more than an image has room for; says what takes most.
absl::StatusOr<TakenTemporaryFiles> TakeTemporaryFiles(const std::string& root,
                                                       const std::set<std::string>& without);

// Whether there would be room, by a look at a job that runs.
absl::Status CheckTemporaryFiles(const std::string& root);

}  // namespace rekindle::ckpt
