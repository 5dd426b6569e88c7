// File locks that a job gets back when it is restored, and that somebody else holds now. CRIU waits for those
// silently and without end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "criu/image_files.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

struct JobLock {
  std::string path;
  criu::FileLock lock;
};

// Those of the image's job, without leases. Left out are locks of files that nobody else can have, because
// their names were gone, and all locks of a job with file systems of its own. DataLoss: the image is damaged.
absl::StatusOr<std::vector<JobLock>> LocksOfJob(const store::ImageReader& image);

// Could the job get all of them now? Where not it waits, at most `patience`: what was just killed gives its
// locks back when it is gone. Cancelled when `cancel_fd` (-1: none) becomes readable meanwhile.
// FailedPrecondition names files, locks and their holders, and begins with kLocksInUse. A file that can't be
// opened is left to CRIU. Thread-safe.
absl::Status CheckLocksAreFree(const std::vector<JobLock>& locks, int cancel_fd = -1,
                               absl::Duration patience = absl::Seconds(2));

// In the message of a restore that was refused for locks: later they may be free.
inline constexpr char kLocksInUse[] = "the job needs its file locks back";

}  // namespace rekindle::restore
